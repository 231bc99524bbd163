async function (figure, packed) {
  const find = (selector) => figure.querySelector(selector);
  const all = (selector) => [...figure.querySelectorAll(selector)];
  const stage = find(".stage"), saying = find(".saying"), scrub = find(".scrub"), play = find('[data-do="play"]');
  const sliders = all(".sliders input");
  const calm = matchMedia("(prefers-reduced-motion: reduce)"), touch = matchMedia("(hover: none)");
  const kept = find(".kept"), pace = find(".speed select");

  // The notebook around the figure must not take its keys for commands.
  for (const type of ["keydown", "mousedown", "focusin"]) figure.addEventListener(type, (event) => event.stopPropagation());
  if (!window.DecompressionStream) return;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const { frames, texts } = await new Response(stream).json();
  frames[0].svg = stage.innerHTML;
  const places = new Map(frames.map((frame) => [String(frame.at), frame]));

  // What is shown: a frame, the box that was chosen (-1: none yet) and the time, in cycles.
  let frame, boxes, operations, labels, arrows, head, chosen = -1, time = 0, zoom = 1, common = false, playing = 0;

  function show(next) {
    pause();
    const same = frame && frame.spans[chosen];
    frame = next;
    stage.innerHTML = frame.svg || '<p class="none">There is no timeline to draw for this setting.</p>';
    stage.classList.remove("going");
    boxes = all(".stage .b");
    operations = new Set(boxes.filter(isOperation));
    boxes.forEach((box) => box.classList.toggle("alone", operations.has(box)));
    labels = boxes.map((box) => (box.nextElementSibling?.matches("text.l") ? box.nextElementSibling : null));
    arrows = all(".stage .arrow");
    head = find(".stage .head");
    find(".heading strong").textContent = frame.title;
    figure.setAttribute("aria-label", frame.title + ": timeline");
    find(".source").textContent = frame.source;
    if (find(".setting")) {
      find(".outcome").textContent = frame.outcome;
      find(".outcome").className = "outcome " + (frame.ok ? "ok" : "bad");
      find(".length").firstChild.style.width = 100 * frame.share + "%";
      find(".total").textContent = frame.length;
      find(".details").replaceChildren(...prose(frame.details));
    }
    all(".legend li").forEach((item) => (item.hidden = !frame.kinds.includes(item.dataset.kind)));
    find(".notes").replaceChildren(...frame.notes.map((note) => element("p", ...prose(note))));
    for (const part of [...all(".bar"), saying]) part.hidden = !boxes.length;
    find('[data-do="round"]').hidden = frame.round.length < 2;
    chosen = -1;
    time = frame.start ?? 0;
    draw();
    describe(-1);
    tell();
    magnify(zoom);
    // The same operation in another setting, if it is there: that is what a reader compares.
    if (same) {
      const twin = frame.spans.findIndex((span) => span[2] === same[2] && span[3] === same[3]);
      if (twin >= 0) choose(twin);
    }
  }

  function element(name, ...children) {
    const node = document.createElement(name);
    node.append(...children);
    return node;
  }

  // What stands between backticks is code; the same rule as in player.py.
  const prose = (text) => text.split(/`([^`\n]+)`/).map((part, i) => (i % 2 ? element("code", part) : part));

  // ---- One operation, and a time ----

  // What is stepped to. A scope only frames what begins within it on its lane; with nothing there, as in a profile, it
  // is an operation itself. The boxes go by start.
  function isOperation(box, i) {
    const [, stop, , , , , lane] = frame.spans[i];
    const within = (span, j) => j > i && span[6] === lane && span[0] < stop;
    return !box.classList.contains("scope") || !frame.spans.some(within);
  }

  function choose(i) {
    chosen = i;
    time = Math.max(frame.spans[i][0], frame.start);
    describe(i);
    mark();
  }

  function seek(cycles) {
    time = Math.min(Math.max(cycles, frame.start), frame.stop);
    let last = -1;
    frame.spans.forEach((span, i) => { if (span[0] <= time && operations.has(boxes[i])) last = i; });
    if (last !== chosen) describe((chosen = last));
    mark();
  }

  function mark() {
    stage.classList.add("going");
    frame.spans.forEach(([start, stop], i) => {
      boxes[i].classList.toggle("now", start <= time && time < stop);
      boxes[i].classList.toggle("past", stop <= time);
    });
    const share = (time - frame.start) / (frame.stop - frame.start);
    head.setAttribute("x1", share * 100 + "%");
    head.setAttribute("x2", share * 100 + "%");
    const view = find(".scroll"), x = share * view.scrollWidth;
    if (x < view.scrollLeft || x > view.scrollLeft + view.clientWidth - 20) view.scrollLeft = x - view.clientWidth * 0.2;
    scrub.value = share * 1000;
    tell();
  }

  function tell() {
    if (!boxes.length) return;
    const us = (time / frame.clock) * 1e6;
    const words = `${Math.round(time).toLocaleString("en")} <!--unit--><!--microseconds-->`;
    find(".clock").textContent = words;
    scrub.setAttribute("aria-valuetext", words);
  }

  function describe(i) {
    boxes.forEach((box) => box.classList.remove("chosen", "cause", "same"));
    // Its own arrow, and those of the waits that it ends.
    const ends = (wait) => wait === i || (i >= 0 && frame.spans[wait][5] === i);
    arrows.forEach((arrow) => arrow.classList.toggle("chosen", ends(Number(arrow.dataset.wait))));
    const [what, sentence, why] = saying.children;
    const source = i < 0 ? "" : texts[frame.spans[i][4]];
    figure.dispatchEvent(new CustomEvent("pipelib-line", { bubbles: true, detail: source.split("\t")[1] ?? "" }));
    if (i < 0 && rounds()) {
      what.textContent = "One round of the critical cycle";
      sentence.textContent = frame.critical;
      why.textContent = "What is not on it may take a little longer, and no step would.";
      return;
    }
    if (i < 0) {
      what.textContent = boxes.length ? `${operations.size} operation${operations.size > 1 ? "s" : ""}` : "";
      sentence.textContent = touch.matches
        ? "Tap one, or step through them with the buttons. Drag sideways for the rest; two fingers zoom."
        : "Point at one, or step through them with the arrow keys (with Shift: those of one row).";
      why.textContent = "";
      return;
    }
    const [start, stop, heading, text, line, cause] = frame.spans[i];
    const number = (cycles) => Math.round(cycles).toLocaleString("en");
    what.textContent = `${texts[heading]} · ${number(stop - start)} <!--length-->, ${number(start)} to ${number(stop)}`;
    sentence.textContent = texts[text] + (texts[line] ? "  " : "");
    if (texts[line]) sentence.append(element("code", texts[line].replace("\t", "  ")));
    why.textContent = "";
    boxes[i].classList.add("chosen");
    if (cause < 0) return;
    const because = frame.spans[cause];
    why.textContent = `Goes on after: ${texts[because[2]]}${texts[because[3]] && ", " + texts[because[3]]}`;
    boxes[cause].classList.add("cause");
  }

  // ---- Steps, play, zoom ----

  // To the next operation, of any lane or of this one.
  function step(by, lane) {
    pause();
    const skip = (i) => !operations.has(boxes[i]) || (lane !== undefined && frame.spans[i][6] !== lane);
    let i = chosen < 0 && by < 0 ? boxes.length : chosen;
    do i += by; while (i >= 0 && i < boxes.length && skip(i));
    if (i >= 0 && i < boxes.length) choose(i);
  }

  function pause() {
    if (!playing) return;
    playing = 0;
    toggled(false);
  }

  function toggled(on) {
    figure.classList.toggle("playing", on);
    play.setAttribute("aria-label", on ? "Pause" : "Play");
    saying.setAttribute("aria-live", on ? "off" : "polite");
  }

  function toggle() {
    if (playing) return pause();
    if (!boxes.length) return;
    const mine = (playing = Math.random());
    toggled(true);
    if (time >= frame.stop * 0.999) seek(frame.start);
    // About a third of a second for an operation, in ten seconds to a minute.
    const seconds = Math.min(60, Math.max(10, operations.size / 3)), speed = (frame.stop - frame.start) / seconds;
    let before = performance.now();
    const tick = (now) => {
      if (playing !== mine || !figure.isConnected) return;
      if (calm.matches && now - before < 1000) return void requestAnimationFrame(tick);
      seek(time + ((now - before) / 1000) * speed * pace.value);
      before = now;
      if (time >= frame.stop) pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  const longest = () => Math.max(...frames.map((each) => (each.svg ? each.stop - each.start : 0)));
  const isCommon = () => common || !kept.hidden;
  const widened = (one) => zoom * (isCommon() && one.svg ? (one.stop - one.start) / longest() : 1);

  // The middle of what is seen stays there.
  function magnify(to) {
    const view = find(".stage .scroll"), share = view && (view.scrollLeft + view.clientWidth / 2) / view.scrollWidth;
    zoom = Math.min(32, Math.max(1, to));
    figure.style.setProperty("--zoom", widened(frame));
    if (!kept.hidden) kept.style.setProperty("--zoom", widened(keeps));
    crop();
    if (stage.classList.contains("going")) mark();
    else if (view) view.scrollLeft = share * view.scrollWidth - view.clientWidth / 2;
  }

  function rescale() {
    common = !common;
    find('[data-do="scale"]').setAttribute("aria-pressed", common);
    magnify(zoom);
  }

  // Hides what has no room at this width; the same rule as in picture.py.
  function crop() {
    const width = find(".stage .time")?.getBoundingClientRect().width;
    if (!width) return;
    const room = (box) => (parseFloat(box.getAttribute("width")) / 100) * width;
    labels.forEach((label, i) => {
      if (!label) return;
      const { long = label.textContent, short = long } = label.dataset;
      const text = [long, short].find((words) => room(boxes[i]) >= 6.5 * words.length + 4);
      label.classList.toggle("narrow", !text);
      label.textContent = text ?? short;
    });
    arrows.forEach((arrow) => arrow.classList.toggle("narrow", room(boxes[arrow.dataset.wait]) < 9));
    // More arrows than a reader can follow: only those of the operation that is told.
    stage.classList.toggle("many", arrows.filter((arrow) => !arrow.classList.contains("narrow")).length > 8);
    rule(width);
  }

  // Ticks at round numbers, as many as have room; the same rule as in picture.py.
  function rule(width) {
    const axis = find(".stage .axis"), length = frame.stop - frame.start;
    if (!axis) return;
    all(".stage :is(.grid, .tick)").forEach((node) => node.remove());
    const rough = length / Math.max(2, width / 80), power = 10 ** Math.floor(Math.log10(rough));
    const round = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const gap = "<!--microseconds-->" ? round : Math.max(1, round), us = 1e6 / frame.clock;
    const digits = Math.max(0, 1 - Math.floor(Math.log10(gap * us))), bottom = Number(axis.getAttribute("y1")), made = [];
    for (let i = Math.ceil(frame.start / gap); i * gap <= frame.stop; i++) {
      const at = i * gap, share = (at - frame.start) / length, x = share * 100 + "%";
      const end = share * width < 20 ? "first" : (1 - share) * width < 20 ? "last" : "";
      const numbers = [at.toLocaleString("en", { maximumFractionDigits: 9 })];
      if ("<!--microseconds-->") numbers.push((at * us).toFixed(digits));
      const words = numbers.map((number, line) => drawn("text", { class: end, x, y: bottom + 12 + 15 * line }, number));
      made.push(drawn("line", { class: "grid", x1: x, x2: x, y1: 0, y2: bottom + 4 }), drawn("g", { class: "tick" }, ...words));
    }
    axis.after(...made);
  }

  function drawn(name, attributes, ...children) {
    const node = document.createElementNS(find(".time").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  // ---- The critical cycle ----

  const rounds = () => find('[data-do="round"]').getAttribute("aria-pressed") === "true" && frame.round.length > 1;

  function round() {
    const button = find('[data-do="round"]');
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    pause();
    stage.classList.remove("going");
    draw();
    const box = rounds() && boxes[frame.round[0]], view = find(".scroll");
    if (box) view.scrollLeft = (parseFloat(box.getAttribute("x")) / 100) * view.scrollWidth - 20;
    describe((chosen = -1));
  }

  // A line from box to box: each goes on from where it begins, a wait from where it ends.
  function draw() {
    all(".stage .ways").forEach((node) => node.remove());
    boxes.forEach((box, i) => box.classList.toggle("way", rounds() && frame.round.includes(i)));
    if (!rounds()) return;
    const value = (box, name) => parseFloat(box.getAttribute(name));
    const points = frame.round.map((i) => {
      const box = boxes[i], isWait = box.classList.contains("wait");
      return [value(box, "x") + (isWait ? value(box, "width") : 0) + "%", value(box, "y") + value(box, "height") / 2];
    });
    const lines = points.slice(1).map(([x2, y2], i) => drawn("line", { x1: points[i][0], y1: points[i][1], x2, y2 }));
    head.before(drawn("g", { class: "ways" }, ...lines, ...points.map(([cx, cy]) => drawn("circle", { cx, cy, r: 3 }))));
  }

  // ---- One picture above the other ----

  let keeps;

  // Keeps what is shown above what the sliders show from now on, on one scale of time.
  function keep() {
    kept.hidden = !kept.hidden;
    find('[data-do="keep"]').setAttribute("aria-pressed", !kept.hidden);
    if (!kept.hidden) {
      keeps = frame;
      const names = all(".sliders > *").map((row) => `${row.querySelector("span").textContent} ${row.querySelector("output").textContent}`);
      const drawing = element("div", ...[...stage.children].map((node) => node.cloneNode(true)));
      drawing.className = "drawing";
      drawing.querySelectorAll(".head, .arrow, .ways").forEach((node) => node.remove());
      const told = [...(names.length ? [names.join(", ")] : [frame.title]), frame.length, frame.outcome].filter(Boolean);
      kept.replaceChildren(element("p", "Kept to compare: ", element("strong", told.join(" · "))), drawing);
    }
    magnify(zoom);
  }

  // ---- An address of what is shown ----

  const number = () => [...document.querySelectorAll(".pipelib-player")].indexOf(figure) + 1;

  async function link() {
    const here = `#player-${number()}:${frame.at.join(".")}@${Math.round(time)}`;
    history.replaceState(null, "", here);
    saying.children[0].textContent = "The address bar has the link.";
    await navigator.clipboard?.writeText(location.href);
    saying.children[0].textContent = "The link is copied.";
  }

  // Shows what the address says, if it is of this figure.
  function follow() {
    const [, at, cycles] = location.hash.match(new RegExp(`^#player-${number()}:([\\d.]*)@(\\d+)$`)) ?? [];
    const there = places.get((at ?? "none").replaceAll(".", ","));
    if (!there) return;
    sliders.forEach((slider) => {
      slider.value = there.at[all(".sliders > *").indexOf(slider.parentNode)];
      tellSlider(slider);
    });
    show(there);
    if (boxes.length) seek(Number(cycles));
    figure.scrollIntoView({ block: "center" });
  }

  function fill() {
    if (document.fullscreenElement === figure) document.exitFullscreen();
    else figure.requestFullscreen?.();
  }

  // ---- What the reader does ----

  const actions = {
    back: () => step(-1), next: () => step(1), play: toggle, scale: rescale, round, keep, link, full: fill,
    in: () => magnify(2 * zoom), out: () => magnify(zoom / 2), mean: explain,
  };
  const keys = { ArrowLeft: "back", ArrowRight: "next", " ": "play", "+": "in", "=": "in", "-": "out", s: "scale", c: "round", k: "keep", l: "link", f: "full" };
  explainable();
  find('[data-do="full"]').hidden = !document.fullscreenEnabled;
  // In a notebook's output an address leads nowhere.
  find('[data-do="link"]').hidden = window !== window.top || figure.closest(".jp-OutputArea") !== null;
  all("button").forEach((button) => button.addEventListener("click", actions[button.dataset.do]));
  figure.addEventListener("keydown", (event) => {
    const action = actions[keys[event.key]];
    if (!action || event.target.matches("select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (scrolls(event.target) && event.key.startsWith("Arrow")) return;
    if (event.target.matches("button") && event.key === " ") return;
    event.preventDefault();
    const lane = event.shiftKey ? frame.spans[chosen]?.[6] : undefined;
    if (event.key.startsWith("Arrow")) step(event.key === "ArrowLeft" ? -1 : 1, lane);
    else if (!find(`[data-do="${keys[event.key]}"]`)?.hidden) action();
  });
  // What has arrow keys of its own: a slider, and a drawing that is wider than its place.
  function scrolls(node) {
    return node.matches("input") || (node.matches(".scroll") && node.scrollWidth > node.clientWidth);
  }

  // A finger is thicker than most boxes: the one that is nearest to it.
  function at(event) {
    const found = boxes.indexOf(event.target);
    if (found >= 0 || event.type !== "click" || !touch.matches) return found;
    const away = boxes.map((box) => {
      const { left, right, top, bottom } = box.getBoundingClientRect();
      return Math.hypot(Math.max(left - event.clientX, 0, event.clientX - right), Math.max(top - event.clientY, 0, event.clientY - bottom));
    });
    const least = Math.min(...away);
    return least <= 22 ? away.indexOf(least) : -1;
  }
  stage.addEventListener("pointerover", (event) => { if (!playing && event.pointerType === "mouse" && at(event) >= 0) describe(at(event)); });
  stage.addEventListener("pointerleave", () => { if (!playing) describe(chosen); });
  stage.addEventListener("click", (event) => {
    stage.focus({ preventScroll: true });
    if (at(event) >= 0) { pause(); choose(at(event)); }
  });
  // What is kept above is scrolled with what is below it.
  stage.addEventListener("scroll", ({ target }) => {
    if (!kept.hidden) find(".kept .scroll").scrollLeft = target.scrollLeft;
  }, true);

  // Two fingers, or a wheel with Ctrl, zoom.
  const fingers = new Map();
  let grip = null;
  const spread = () => { const [a, b] = fingers.values(); return Math.hypot(a.x - b.x, a.y - b.y); };
  stage.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    grip = fingers.size === 2 ? { spread: spread(), zoom } : null;
  });
  stage.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (grip) magnify((grip.zoom * spread()) / grip.spread);
  });
  for (const type of ["pointerup", "pointercancel"]) addEventListener(type, (event) => { if (fingers.delete(event.pointerId)) grip = null; });
  stage.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    magnify(zoom * 2 ** (-event.deltaY / 200));
  }, { passive: false });

  // The page's code points at a line: its boxes stand out.
  figure.addEventListener("pipelib-mark", ({ detail }) => {
    frame.spans.forEach((span, i) => boxes[i].classList.toggle("same", detail !== "" && texts[span[4]].split("\t")[1] === detail));
  });

  scrub.addEventListener("input", () => { pause(); seek(frame.start + (scrub.value / 1000) * (frame.stop - frame.start)); });
  sliders.forEach((slider) => {
    slider.disabled = false;
    slider.addEventListener("input", () => {
      tellSlider(slider);
      show(places.get(String(position())));
    });
  });

  function tellSlider(slider) {
    const words = JSON.parse(slider.dataset.values)[slider.value];
    slider.nextElementSibling.textContent = words;
    slider.setAttribute("aria-valuetext", words);
  }

  // ---- What the mark before an outcome means ----

  function explainable() {
    const outcome = find(".outcome");
    if (!outcome?.textContent) return;
    const button = element("button", "?"), row = element("div");
    Object.assign(button, { type: "button", className: "mean", title: "What the mark means" });
    button.dataset.do = "mean";
    button.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-label", "What the mark means");
    row.className = "verdict";
    outcome.before(row);
    row.append(outcome, button);
    const meaning = element("p", "✓: the check found no fault in any order in which the threads may run. It says nothing about speed. ✕: a fault was found, or the kernel cannot be made.");
    meaning.className = "meaning";
    meaning.hidden = true;
    row.after(meaning);
  }

  function explain() {
    const meaning = find(".meaning");
    meaning.hidden = !meaning.hidden;
    find(".mean").setAttribute("aria-expanded", String(!meaning.hidden));
  }

  // A name with one value has no slider: its place is 0.
  function position() {
    return [...find(".sliders").children].map((row) => Number(row.querySelector("input")?.value ?? 0));
  }

  new ResizeObserver(crop).observe(stage);
  show(frames[0]);
  follow();
  addEventListener("hashchange", follow);
  figure.dataset.ready = "true";
}
