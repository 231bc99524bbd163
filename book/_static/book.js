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

// Paper is light. What the reader has unfolded is printed unfolded.
(() => {
  const { dataset } = document.documentElement;
  let theme;
  addEventListener("beforeprint", () => {
    theme = dataset.theme;
    dataset.theme = "light";
  });
  addEventListener("afterprint", () => (dataset.theme = theme));
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

// On a phone a player's rows have their names in two lines, and a button shows all of its time in one look.
for (const player of document.querySelectorAll(".pipelib-player")) {
  const line = (words, dy) => {
    const part = document.createElementNS("http://www.w3.org/2000/svg", "tspan");
    part.textContent = words.join(" ");
    part.setAttribute("x", "100%");
    part.setAttribute("dy", dy);
    return part;
  };
  const lay = () => {
    if (!matchMedia("(max-width: 600px)").matches) return;
    for (const name of player.querySelectorAll(".names text")) {
      if (name.children.length || name.getComputedTextLength() < 98) continue;
      const words = name.textContent.split(" "), half = name.textContent.length / 2;
      const at = Math.max(1, words.findIndex((_, i) => words.slice(0, i + 1).join(" ").length > half + 1));
      name.replaceChildren(line(words.slice(0, at), "-0.5em"), line(words.slice(at), "1em"));
    }
  };
  new MutationObserver(lay).observe(player, { childList: true, subtree: true });
  lay();
  const fit = document.createElement("button");
  Object.assign(fit, { type: "button", textContent: "Fit", title: "All of the time in one look" });
  fit.dataset.do = "fit";
  fit.setAttribute("aria-pressed", false);
  fit.addEventListener("click", () => {
    fit.setAttribute("aria-pressed", player.classList.toggle("fits"));
    player.querySelector('[data-do="out"]').click(); // its labels are cut anew
  });
  player.querySelector(".tools").append(fit);
}

// The line of code that a player's operation is from stands out, and the operations of a line that is pointed at.
(() => {
  if (!window.CSS?.highlights) return;
  const blocks = [...document.querySelectorAll(".cell_input pre")];
  const players = [...document.querySelectorAll(".pipelib-player")];
  // A block's lines, each with the range of the page that it takes.
  const lines = (block) => {
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT), found = [];
    let range = null, text = "";
    while (walker.nextNode()) {
      const node = walker.currentNode;
      for (let from = 0; from < node.length; ) {
        const end = node.data.indexOf("\n", from), to = end < 0 ? node.length : end;
        if (!range) (range = document.createRange()).setStart(node, from);
        range.setEnd(node, to);
        text += node.data.slice(from, to);
        if (end >= 0) {
          found.push({ text: text.trim(), range });
          range = null;
          text = "";
        }
        from = to + 1;
      }
    }
    return found;
  };
  const known = new Map();
  const linesOf = (block) => known.get(block) ?? known.set(block, lines(block)).get(block);
  const show = (ranges) => CSS.highlights.set("source-line", new Highlight(...ranges));
  addEventListener("pipelib-line", ({ target, detail }) => {
    // Of lines with the same text, those of the last cell before the figure.
    const before = blocks.filter((block) => block.compareDocumentPosition(target) & Node.DOCUMENT_POSITION_FOLLOWING);
    const found = before.map((block) => linesOf(block).filter((line) => detail && line.text === detail)).findLast((each) => each.length);
    show((found ?? []).map((line) => line.range));
  });
  let pointed = "";
  addEventListener("pointermove", (event) => {
    const block = event.target.closest?.(".cell_input pre");
    const line = block && linesOf(block).find(({ range }) => {
      const { top, bottom } = range.getBoundingClientRect();
      return top <= event.clientY && event.clientY < bottom;
    });
    const text = line?.text ?? "";
    if (text === pointed) return;
    pointed = text;
    for (const player of players) player.dispatchEvent(new CustomEvent("pipelib-mark", { detail: text }));
  });
})();
