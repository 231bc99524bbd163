// What scrolls within its own box can be reached by keyboard, and shows that there is more.
(() => {
  const boxes = ".cell_output, .cell_output [style='overflow-x: auto'], .pst-scrollable-table-container, .bd-article pre, div.math, .pipelib-player .scroll, .pipelib-diagram .scroll";
  const look = () => requestAnimationFrame(() => {
    for (const box of document.querySelectorAll(boxes)) {
      const scrolls = box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "visible";
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
      box.toggleAttribute("data-more", scrolls && box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    }
  });
  // A player's buttons and sliders draw it anew.
  for (const type of ["load", "resize", "click", "input", "scroll", "toggle"]) addEventListener(type, look, true);
})();

// Paper is light, and nothing on it unfolds.
(() => {
  const { dataset } = document.documentElement;
  let theme, folded;
  addEventListener("beforeprint", () => {
    theme = dataset.theme;
    folded = document.querySelectorAll("article details:not([open])");
    dataset.theme = "light";
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => {
    dataset.theme = theme;
    for (const each of folded) each.open = false;
  });
})();

// Once its heading is out of sight, a phone's header says which chapter this is.
addEventListener("load", () => {
  const heading = document.querySelector("article h1");
  const look = ([{ isIntersecting, boundingClientRect }]) =>
    document.documentElement.toggleAttribute("data-below-heading", !isIntersecting && boundingClientRect.top < 0);
  if (heading) new IntersectionObserver(look).observe(heading);
});

// A picture that compares lengths has one scale of time from the first.
for (const player of document.querySelectorAll(".one-scale .pipelib-player")) {
  const press = () => player.dataset.ready && player.querySelector('[data-do="scale"][aria-pressed="false"]')?.click();
  new MutationObserver(press).observe(player, { attributeFilter: ["data-ready"] });
  press();
}
