// What scrolls within its own box can be reached, and scrolled, by keyboard.
(() => {
  const boxes = ".cell_output, .pst-scrollable-table-container, .bd-article pre, .math, .pipelib-player .scroll";
  const look = () => requestAnimationFrame(() => {
    for (const box of document.querySelectorAll(boxes)) {
      const scrolls = box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "visible";
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  });
  // A player's buttons and sliders draw it anew.
  for (const type of ["load", "resize", "click", "input", "toggle"]) addEventListener(type, look, true);
})();
