async function (figure, packed) {
  const find = (selector) => figure.querySelector(selector);
  const all = (selector) => [...figure.querySelectorAll(selector)];
  const stage = find(".stage"), saying = find(".saying"), scrub = find(".scrub"), play = find('[data-do="play"]');
  const sliders = all(".sliders input");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

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
    find(".bar").hidden = saying.hidden = !boxes.length;
    chosen = -1;
    time = frame.start ?? 0;
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
    boxes.forEach((box) => box.classList.remove("chosen", "cause"));
    arrows.forEach((arrow) => arrow.classList.toggle("chosen", Number(arrow.dataset.wait) === i));
    const [what, sentence, why] = saying.children;
    if (i < 0) {
      what.textContent = boxes.length ? `${operations.size} operation${operations.size > 1 ? "s" : ""}` : "";
      sentence.textContent = "Point at one, or step through them with the arrow keys (with Shift: those of one lane).";
      why.textContent = "";
      return;
    }
    const [start, stop, heading, text, line, cause] = frame.spans[i];
    const number = (cycles) => Math.round(cycles).toLocaleString("en");
    what.textContent = `${texts[heading]} · ${number(stop - start)} <!--length-->, ${number(start)} to ${number(stop)}`;
    sentence.textContent = texts[text] + (texts[line] ? "  " : "");
    if (texts[line]) sentence.append(element("code", texts[line]));
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
      seek(time + ((now - before) / 1000) * speed);
      before = now;
      if (time >= frame.stop) pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  function magnify(to) {
    zoom = Math.min(32, Math.max(1, to));
    const longest = Math.max(...frames.map((each) => (each.svg ? each.stop - each.start : 0)));
    figure.style.setProperty("--zoom", zoom * (common && boxes.length ? (frame.stop - frame.start) / longest : 1));
    crop();
    if (stage.classList.contains("going")) mark();
  }

  function rescale() {
    common = !common;
    find('[data-do="scale"]').setAttribute("aria-pressed", common);
    magnify(zoom);
  }

  // Hides what has no room at this width; the same rule as in picture.py.
  function crop() {
    const width = find(".stage .time")?.getBoundingClientRect().width;
    const room = (box) => (parseFloat(box.getAttribute("width")) / 100) * width;
    labels.forEach((label, i) => {
      if (!label) return;
      const { long = label.textContent, short = long } = label.dataset;
      const text = [long, short].find((words) => room(boxes[i]) >= 6.5 * words.length + 4);
      label.classList.toggle("narrow", !text);
      label.textContent = text ?? short;
    });
    arrows.forEach((arrow) => arrow.classList.toggle("narrow", room(boxes[arrow.dataset.wait]) < 9));
    const ticks = all(".stage .tick"), every = Math.ceil((48 * ticks.length) / width);
    ticks.forEach((tick, i) => tick.classList.toggle("narrow", i % every > 0));
  }

  // ---- What the reader does ----

  const actions = { back: () => step(-1), next: () => step(1), play: toggle, scale: rescale, in: () => magnify(2 * zoom), out: () => magnify(zoom / 2) };
  const keys = { ArrowLeft: "back", ArrowRight: "next", " ": "play", "+": "in", "=": "in", "-": "out", s: "scale" };
  all("button").forEach((button) => button.addEventListener("click", actions[button.dataset.do]));
  figure.addEventListener("keydown", (event) => {
    const action = actions[keys[event.key]];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    if (scrolls(event.target) && event.key.startsWith("Arrow")) return;
    if (event.target.matches("button") && event.key === " ") return;
    event.preventDefault();
    const lane = event.shiftKey ? frame.spans[chosen]?.[6] : undefined;
    if (event.key.startsWith("Arrow")) step(event.key === "ArrowLeft" ? -1 : 1, lane);
    else action();
  });
  // What has arrow keys of its own: a slider, and a drawing that is wider than its place.
  function scrolls(node) {
    return node.matches("input") || (node.matches(".scroll") && node.scrollWidth > node.clientWidth);
  }

  const at = (event) => boxes.indexOf(event.target);
  stage.addEventListener("pointerover", (event) => { if (!playing && event.pointerType === "mouse" && at(event) >= 0) describe(at(event)); });
  stage.addEventListener("pointerleave", () => { if (!playing) describe(chosen); });
  stage.addEventListener("click", (event) => {
    stage.focus({ preventScroll: true });
    if (at(event) >= 0) { pause(); choose(at(event)); }
  });
  scrub.addEventListener("input", () => { pause(); seek(frame.start + (scrub.value / 1000) * (frame.stop - frame.start)); });
  sliders.forEach((slider) => {
    slider.disabled = false;
    slider.addEventListener("input", () => {
      const words = JSON.parse(slider.dataset.values)[slider.value];
      slider.nextElementSibling.textContent = words;
      slider.setAttribute("aria-valuetext", words);
      show(places.get(String(position())));
    });
  });

  // A name with one value has no slider: its place is 0.
  function position() {
    return [...find(".sliders").children].map((row) => Number(row.querySelector("input")?.value ?? 0));
  }

  new ResizeObserver(crop).observe(stage);
  show(frames[0]);
  figure.dataset.ready = "true";
}
