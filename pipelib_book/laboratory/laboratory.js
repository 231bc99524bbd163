// The laboratory on a page: a program's operations as columns, which the reader edits; what the checker and the simulator
// then say comes from a worker. Each element of the class is one laboratory; `data-subjects` has its programs, and
// `data-challenges` what a reader is to make of them. One with `data-small` opens in place of the player beside it.

for (const place of document.querySelectorAll(".pipelib-laboratory")) laboratory(place);

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "text") node.textContent = value;
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// What stands between backticks is code; the same rule as in the player.
const prose = (text) => text.split(/`([^`\n]+)`/).map((part, i) => (i % 2 ? element("code", { text: part }) : part));

function laboratory(place) {
  const subjects = JSON.parse(place.dataset.subjects), challenges = JSON.parse(place.dataset.challenges ?? "[]");
  const key = `pipelib-laboratory ${location.pathname}`, isSmall = "small" in place.dataset;
  let linked = fromAddress(challenges) ?? (isSmall ? null : fromTab(key)), bench = null;
  const player = isSmall ? place.parentElement.querySelector(".pipelib-player") : null;

  const title = () => (linked?.broken || !linked ? (player ? "Open in the laboratory" : "Open the laboratory") : linked.isKept ? "Open the state you left" : "Open the linked state");
  const open = element("button", { type: "button", text: title(), onclick: start });
  const price = element("span", { text: "It starts Python in this page: 13 MB, once." });
  const door = element("p", { class: "door lab-bar" }, open, price);
  place.replaceChildren(door);  // instead of what is said where no script runs

  // A link that is pasted into the open page.
  addEventListener("hashchange", () => {
    const given = fromAddress(challenges);
    if (!given) return;
    linked = given;
    open.textContent = title();
    place.scrollIntoView({ block: "nearest" });
    if (place.contains(bench?.node ?? null)) bench.open(given, () => {});
  });

  // The laboratory, or what stands there while it is closed.
  function show(isOpen) {
    if (player) player.hidden = isOpen;
    place.replaceChildren(isOpen ? bench.node : door);
    (isOpen ? bench.node.querySelector("select:not([hidden] *)") : open).focus();
  }

  function close() {
    open.disabled = false;
    open.textContent = "Open in the laboratory";
    door.replaceChildren(open);
    show(false);
  }

  async function start() {
    open.disabled = true;
    const bar = element("progress", { max: 1, value: 0, "aria-label": "Start of the laboratory" });
    const said = element("span", { text: "Python is brought" });
    door.replaceChildren(bar, said);
    try {
      if (typeof WebAssembly === "undefined") throw new Error("this browser has no WebAssembly, in which Python runs. Open the page in another one, or allow it.");
      if (!bench) {
        const python = await worker((done, of, what) => { bar.value = done / of; said.textContent = what; });
        bench = workbench(python, subjects, challenges, place, player && close, isSmall ? null : key);
      }
      await bench.open(linked ?? seen(player, subjects[0]), () => show(true));
      linked = null;
    } catch (error) {
      bench = null;
      open.disabled = false;
      open.textContent = "Try again";
      door.replaceChildren(element("span", { class: "error", role: "alert", text: `The laboratory did not start: ${error.message}` }), open);
      show(false);
    }
  }
}

// What a player's reader has chosen: its number of slots.
function seen(player, subject) {
  const slider = player?.querySelector(".sliders input");
  return slider ? { subject: subject.name, slots: Number(JSON.parse(slider.dataset.values)[slider.value]) } : null;
}

// What an address holds: a state (the program's name, the challenge's, the edits, and whether the check is strict), or a
// chapter, whose first challenge it means.
function fromAddress(challenges) {
  const [, chapter] = location.hash.match(/^#chapter-(\d+)$/) ?? [];
  const posed = challenges.find((each) => String(each.chapter) === chapter);
  if (posed) return { subject: posed.subject, challenge: posed.name };
  const [, packed] = location.hash.match(/^#laboratory=(.*)$/) ?? [];
  return packed === undefined ? null : stateOf(() => atob(packed.replaceAll("-", "+").replaceAll("_", "/")));
}

// What this tab has kept of a state that was left, also one of a file of the reader's own.
function fromTab(key) {
  try {
    const text = sessionStorage.getItem(key);
    return text && { ...stateOf(() => text), isKept: true };
  } catch {
    return null;
  }
}

// A state from its text; one that is broken says so.
function stateOf(read) {
  try {
    const state = JSON.parse(read()), { subject, edits = [], slots, file } = state;
    const isFile = typeof file?.text === "string" && typeof file?.title === "string";
    const isWhole = (isFile || typeof subject === "string") && Array.isArray(edits);
    return isWhole ? { ...state, slots: Number.isInteger(slots) ? slots : undefined, file: isFile ? file : undefined } : { broken: true };
  } catch {
    return { broken: true };
  }
}

const toAddress = (state) => "#laboratory=" + btoa(JSON.stringify(state)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");

// What the worker needs, by name: addresses beside this script, or blobs, of a page that holds all of it.
async function brought() {
  const within = document.getElementById("pipelib-laboratory-files");
  const beside = (name) => new URL(name, import.meta.url).href;
  if (!within) {
    const sizes = await (await fetch(beside("sizes.json"))).json();
    const files = Object.fromEntries(Object.keys(sizes).map((name) => [name, beside(name)]));
    return { files: { ...files, bytes: Object.values(sizes).reduce((sum, size) => sum + size, 0) }, script: beside("worker.js") };
  }
  const unpacked = Object.entries(JSON.parse(within.textContent)).map(async ([name, text]) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return [name, await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).blob()];
  });
  const files = Object.fromEntries(await Promise.all(unpacked));
  return { files, script: URL.createObjectURL(new Blob([files["worker.js"]], { type: "text/javascript" })) };
}

// What a question that was stopped is answered with.
const STOPPED = "Stopped, before there was an answer.";

// Starts the worker; resolves to what asks it, and what stops it. A worker that is stopped ends, and another one begins,
// with the program that was last opened.
async function worker(tell) {
  const { files, script } = await brought().catch(() => { throw new Error("its files cannot be reached. Is there a connection?"); });
  const waiting = new Map();
  let beside = null, last = 0, opened = null, fault = null;
  const finish = (give) => { for (const [id, each] of waiting) { waiting.delete(id); give(each); } };
  const fail = (said) => { fault = new Error(said); finish(({ reject }) => reject(fault)); };

  function begin() {
    fault = null;
    beside = new Worker(script);
    beside.addEventListener("message", ({ data }) => {
      if (data.failed) fail(data.failed);
      else if (data.of) tell(data.done, data.of, data.what);
      else waiting.get(data.id)?.resolve(data.text), waiting.delete(data.id);
    });
    beside.addEventListener("error", (event) => fail(event.message || "the worker cannot be loaded."));
    beside.postMessage({ files });
  }

  const send = (what) => new Promise((resolve, reject) => {
    if (fault) return reject(fault);
    waiting.set(++last, { resolve, reject, what });
    beside.postMessage({ id: last, ...what });
  });

  async function ask(what) {
    const text = await send(what);
    if (what.open !== undefined && !text) opened = what.open;
    return text;
  }

  function stop() {
    beside.terminate();
    begin();
    const held = opened;
    finish(({ resolve, what }) => resolve(what.open === undefined ? JSON.stringify({ error: STOPPED }) : STOPPED));
    if (held !== null) send({ open: held }).catch(() => {});
  }

  begin();
  return { ask, stop };
}

// With `close` it is a small one: of one kernel, and with a way back.
function workbench(python, subjects, challenges, place, close, key) {
  // The reader's state: what is on the bench, the challenge, and the history. `picked` has what was chosen before each edit.
  let subject = null, number = undefined, challenge = null, edits = [], picked = [], undone = [];
  // What is shown: the last answer, the cycles before all edits, and the chosen operation, a thread and an index.
  let shown = null, original = 0, chosen = null;

  const choice = element("select", { "aria-label": "Kernel", class: "wide", onchange: () => take(choice.value) },
    ...subjects.map(({ name, title }) => element("option", { value: name, text: title })));
  const task = element("select", { "aria-label": "Challenge", class: "wide", onchange: () => set(task.value) });
  const following = element("button", { type: "button", text: "Next challenge", onclick: () => set(next()) });
  const asked = element("p"), hint = element("details"), judged = element("p", { class: "judged", role: "status" });
  const board = element("div", { class: "board", hidden: true }, asked, hint);
  const slots = element("select", { "aria-label": "slots", onchange: () => take(subject.name, { slots: Number(slots.value), strict: strict.checked }) });
  const field = element("label", {}, "slots ", slots);
  const file = element("input", { type: "file", accept: ".json,application/json", "aria-label": "Open a saved program", onchange: () => file.files[0] && read(file.files[0]) });
  const opened = element("label", { class: "file" }, "Open a file…", file);
  const leave = element("button", { type: "button", text: "Close", onclick: close });
  const undo = element("button", { type: "button", text: "Undo", title: "Undo (Ctrl+Z)", onclick: back });
  const redo = element("button", { type: "button", text: "Redo", title: "Redo (Ctrl+Y)", onclick: forth });
  const reset = element("button", { type: "button", text: "Start again", title: "Redo brings the edits back", onclick: again });
  const link = element("button", { type: "button", text: "Link", onclick: copyLink });
  const stop = element("button", { type: "button", class: "stop", text: "Stop", hidden: true, onclick: python.stop });
  const summary = element("p", { class: "summary" });
  const sign = element("span", { class: "sign", "aria-hidden": "true" }), outcome = element("span");
  const verdict = element("div", { class: "lab-verdict", role: "status" }, sign, outcome);
  const trouble = element("p", { class: "error", role: "alert", hidden: true });
  const columns = element("div", { class: "columns" });
  const what = element("p"), source = element("p");
  const every = element("input", { type: "checkbox", checked: true, onchange: choose }), places = element("span");
  const strict = element("input", { type: "checkbox", onchange: () => change(edits) });
  const act = {
    remove: button("Remove", "Delete"), repeat: button("Twice", "D"), up: button("Earlier", "Alt+Up"), down: button("Later", "Alt+Down"),
  };
  const tools = element("div", { class: "lab-bar", role: "toolbar", "aria-label": "Edit the chosen operation" },
    ...Object.values(act), element("label", {}, every, " at every step"), places);
  const barriers = element("div", { class: "lab-settings" }), parameters = element("div", { class: "lab-settings" });
  const machineFold = element("details", {}, element("summary", { text: "The machine" }), parameters);
  const counts = element("h2", { text: "How many arrivals a phase takes" });
  const findings = element("div"), figure = element("div"), details = element("p", { class: "details" });
  const severe = element("label", { class: "severe" }, strict, " strict check");
  const front = element("div", { class: "front" }, judged, verdict, stop, trouble, element("div", { class: "chosen", "aria-live": "polite" }, what, source), tools);
  const bar = (...parts) => element("div", { class: "lab-bar" }, ...parts);
  // Of a small one the timeline stands where the player's was.
  const node = element("div", { onkeydown: keys }, ...(close
    ? [bar(field, severe, undo, redo, reset, link, leave), summary, figure, details, front, columns, counts, barriers, machineFold, findings]
    : [bar(choice, field, opened, undo, redo, reset, link), bar(...(challenges.length ? [task, following] : []), severe),
      summary, board, front, columns, counts, barriers, machineFold, figure, details, findings]));

  function button(text, key) {
    return element("button", { type: "button", text, title: `${text} (${key})` });
  }
  act.remove.addEventListener("click", () => edit("remove"));
  act.repeat.addEventListener("click", () => edit("repeat"));
  act.up.addEventListener("click", () => edit("move", -1));
  act.down.addEventListener("click", () => edit("move", 1));

  // ---- What is on the bench ----

  // A question to Python; the reader can stop one that takes long.
  let asking = 0;
  async function ask(what) {
    const slow = setTimeout(() => (stop.hidden = false), 1000);
    asking += 1;
    node.classList.add("working");
    try {
      return await python.ask(what);
    } catch (error) {
      const said = `Python has ended: ${error.message} Open the page anew.`;
      return what.open === undefined ? JSON.stringify({ error: said }) : said;
    } finally {
      clearTimeout(slow);
      asking -= 1;
      node.classList.toggle("working", asking > 0);
      stop.hidden = asking === 0;
    }
  }

  // Opens a state, as a link or the tab has it; `ready` is called when there is something to show. Its edits come then.
  async function open(state, ready) {
    listTasks();
    const isKnown = state?.file !== undefined || subjects.some(({ name }) => name === state?.subject);
    const { edits: all = [], ...given } = isKnown ? state : {};
    if (given.file) await put(given.file.text, ownFile(given.file), given);
    if (!given.file || !shown) await take(isKnown && !given.file ? given.subject : subjects[0].name, given.file ? {} : given);
    if (!shown) throw new Error(trouble.textContent);
    ready();
    if (all.length) await begin(all);
    const { slots: wanted, challenge: posed } = isKnown && !given.file ? state : {};
    if (wanted !== undefined && !posed && number !== wanted) complain(`The address asks for ${wanted} slots, and this kernel was not traced with so many: it is shown as it comes.`);
    if (state && !isKnown) complain("The address holds no state of this laboratory, so it begins anew: copy the link once more.");
  }

  async function take(name, state = {}) {
    const found = subjects.find((each) => each.name === name);
    // A challenge is about its own kernel, with the slots that this begins with: a link may say something else.
    const posed = challenges.find((each) => each.name === state.challenge && each.subject === name);
    const number = !posed && Object.hasOwn(found.slots ?? {}, state.slots) ? state.slots : undefined;
    const file = (number !== undefined && found.slots[number]) || found.file;
    const text = found.text ?? (await brief(file));
    if (text === null) return refuse(`${found.title}: its program cannot be reached. Is there a connection?`);
    await put(text, found, { ...state, slots: number }, posed);
  }

  // A file's text, or null.
  async function brief(name) {
    try {
      const response = await fetch(new URL(name, import.meta.url));
      return response.ok ? await response.text() : null;
    } catch {
      return null;
    }
  }

  const ownFile = ({ title, text }) => ({ name: "", title, text, summary: `Read from ${title}.` });

  async function read(given) {
    const text = await given.text();
    await put(text, ownFile({ title: given.name, text }), {});
    file.value = "";
  }

  // Nothing changes, and the lists say again what is shown.
  function refuse(text) {
    choice.value = subject?.name ?? "";
    task.value = challenge?.name ?? "";
    if (subject) offer(subject, number);
    complain(text);
  }

  async function put(text, next, state, posed = null) {
    const refused = await ask({ open: text });
    if (refused) return refuse(`${next.title}: ${refused}`);
    subject = next;
    number = state.slots;
    choice.value = next.name;
    summary.replaceChildren(...prose(next.summary));
    link.disabled = !next.name;
    link.title = next.name ? "" : "Only the page's own kernels have links.";
    challenge = posed;
    task.value = challenge?.name ?? "";
    offer(next, state.slots);
    strict.disabled = challenge !== null;
    severe.title = challenge ? "A challenge says which check judges it." : "";
    every.checked = true;
    strict.checked = challenge ? challenge.goal.strict : (state.strict ?? false);
    chosen = null;
    await begin([]);
    original = shown.cycles;
    await (state.edits?.length ? begin(state.edits) : show());
  }

  // The numbers of slots that the kernel was traced with. Each is a program of its own, so edits begin anew.
  function offer({ slots: files = {}, file }, number) {
    const numbers = Object.keys(files);
    field.hidden = !numbers.length;
    slots.replaceChildren(...numbers.map((each) => element("option", { value: each, text: each })));
    slots.value = String(files[number] ? number : numbers.find((each) => files[each] === file));
    slots.disabled = challenge !== null;
    field.title = challenge ? "A challenge comes with its number of slots." : "";
  }

  // ---- Challenges ----

  // A browser may keep nothing for this page.
  const kept = (() => { try { return localStorage; } catch { return null; } })();
  const solved = () => {
    try {
      const names = JSON.parse(kept?.getItem("pipelib-challenges") ?? "[]");
      return challenges.map(({ name }) => name).filter((name) => names.includes(name));
    } catch {
      return [];  // something else wrote there
    }
  };

  function listTasks() {
    const done = solved();
    const groups = Map.groupBy(challenges, ({ chapter }) => chapter);
    task.replaceChildren(element("option", { value: "", text: `Challenges (${done.length} of ${challenges.length} solved)` }),
      ...[...groups].map(([chapter, each]) => element("optgroup", { label: `Chapter ${chapter}` },
        ...each.map(({ name, title }) => element("option", { value: name, text: (done.includes(name) ? "\u2713 " : "") + title })))));
    task.value = challenge?.name ?? "";
  }

  async function set(name) {
    const found = challenges.find((each) => each.name === name);
    await take(found?.subject ?? subject.name, { challenge: name });
  }

  // The first that is not solved, after the one that is set.
  function next() {
    const at = challenges.indexOf(challenge), done = solved();
    return [...challenges.slice(at + 1), ...challenges.slice(0, at)].find(({ name }) => !done.includes(name))?.name ?? "";
  }

  function judge() {
    board.hidden = judged.hidden = !challenge;
    if (!challenge) return;
    const { name, chapter, page, title, task: words, singles } = challenge;
    const counted = singles ? `One edit is enough, in ${singles > 1 ? `${singles} ways` : "one way"}.` : "It takes more than one edit, or a move by more than one place.";
    asked.replaceChildren(element("strong", {}, element("a", { href: page, text: `Chapter ${chapter}` }), `: ${title}. `), ...prose(`${words} `), counted);
    if (hint.dataset.of !== name) {
      hint.replaceChildren(element("summary", { text: "Hint" }), ...prose(challenge.hint));
      hint.open = false;
      hint.dataset.of = name;
    }
    const is = isSolved();
    judged.hidden = !edits.length;
    judged.classList.toggle("solved", is);
    judged.replaceChildren(...prose(is ? `Solved, with ${shown.made} edit${shown.made > 1 ? "s" : ""}. ${challenge.why}` : `Not yet. ${shown.unmet.join(" ")}`));
    following.disabled = !next();
    if (!is || solved().includes(name)) return;
    try { kept?.setItem("pipelib-challenges", JSON.stringify([...solved(), name])); } catch { /* there is no room */ }
    listTasks();
  }

  const isSolved = () => challenge !== null && shown.unmet.length === 0;

  // ---- Edits ----

  // Asks for a state, and shows it if it has an answer; `moved` says where the chosen operation is then.
  async function change(next, moved = (answer, index) => index, words = "", line = "") {
    const inColumns = columns.contains(document.activeElement);
    const asks = { edits: next, strict: strict.checked, ...(challenge && { goal: challenge.goal }) };
    const answer = JSON.parse(await ask({ ask: JSON.stringify(asks) }));
    if (answer.error) {
      complain(answer.error);
      if (inColumns) focusChosen();
      return null;
    }
    trouble.hidden = true;
    edits = next;
    shown = answer;
    if (chosen) chosen = { ...chosen, index: Math.max(0, Math.min(shown.threads[chosen.thread].ops.length - 1, moved(answer, chosen.index))) };
    show();
    if (inColumns) focusChosen();
    if (words) said(words, line);
    keep();
    answered();
    return answer;
  }

  // A history to begin with.
  async function begin(first) {
    picked = first.map(() => null);
    undone = [];
    await change(first);
    buttons();
  }

  async function again() {
    const all = edits.toReversed();
    await begin([]);
    undone = all;
    buttons();
  }

  // One edit more. The chosen operation stays chosen; if it is gone, the one that followed it is.
  async function add(edit, words = "", line = "") {
    const before = chosen && { ...chosen };
    const follow = ({ order }, index) => {
      if (!order || edit[1] !== chosen.thread) return index;
      const at = order.indexOf(index);
      return at >= 0 ? at : order.findIndex((old) => old > index);
    };
    const answer = await change([...edits, edit], follow, words, line);
    if (answer) picked.push(before);
    buttons();
    return answer !== null;
  }

  function complain(text) {
    trouble.textContent = text;
    trouble.hidden = false;
    answered();
  }

  // So that whoever watches the page knows that an answer has come.
  const answered = () => (place.dataset.answers = Number(place.dataset.answers ?? 0) + 1);

  // The chosen operation, or all of its line.
  function meant() {
    const { sites } = shown.threads[chosen.thread];
    return every.checked ? sites.flatMap((site, i) => (site === sites[chosen.index] ? [i] : [])) : [chosen.index];
  }

  async function edit(name, ...rest) {
    if (!chosen || op().fixed || works()) return;
    const indices = meant(), done = { remove: "Removed", repeat: "Twice", move: rest[0] < 0 ? "Earlier" : "Later" }[name];
    const words = `${done}: ${op().text}${indices.length > 1 ? `, at ${indices.length} places` : ""}.`;
    if (await add([name, chosen.thread, indices, ...rest], words, line())) undone = [];
    buttons();
  }

  async function back() {
    if (!edits.length || works()) return;
    const last = edits.at(-1), before = picked.at(-1);
    chosen = before ?? chosen;
    if (!(await change(edits.slice(0, -1)))) return;
    picked.pop();
    undone.push(last);
    buttons();
  }

  async function forth() {
    if (!undone.length || works()) return;
    if (await add(undone.at(-1))) undone.pop();
    buttons();
  }

  function buttons() {
    undo.disabled = !edits.length;
    redo.disabled = !undone.length;
    reset.disabled = !edits.length;
  }

  // What is chosen means nothing while an answer is on its way.
  const works = () => node.classList.contains("working");
  const op = () => shown.threads[chosen.thread].ops[chosen.index];
  const line = () => op().source || op().line || "";

  // ---- What is shown ----

  function show() {
    verdict.className = "lab-verdict " + (shown.ok ? "ok" : "bad");
    const kinds = shown.findings.map(({ kind }) => kind), asked = isSolved() && kinds.length ? ", as asked" : "";
    const took = `${kinds.includes("deadlock") ? "stuck after " : ""}${cycles(shown.cycles)} cycles`;
    outcome.textContent = `${shown.outcome}${asked}. ${took}${edits.length ? `, ${cycles(original)} before your edits` : ""}.`;
    const blamed = new Set(shown.findings.flatMap(({ ops }) => ops.map(String)));
    columns.replaceChildren(...shown.threads.map((thread, number) => column(thread, number, blamed)));
    barriers.replaceChildren(...shown.barriers.map(arrivals));
    counts.hidden = !shown.barriers.length;
    parameters.replaceChildren(...Object.entries(shown.machine).map(parameter));
    // In sight: what a challenge does not ask for, then one that can be played.
    const odd = ({ kind }) => challenge !== null && !(challenge.goal.found ?? []).includes(kind);
    const order = [...shown.findings.keys()].sort((a, b) => odd(shown.findings[b]) - odd(shown.findings[a]));
    const played = order.findIndex((at) => shown.findings[at].plays);
    if (played > 1) order.splice(1, 0, ...order.splice(played, 1));
    const told = order.map((at) => finding(shown.findings[at], at)), rest = told.splice(2);
    const more = rest.length ? [element("details", {}, element("summary", { text: `${rest.length} more` }), ...rest)] : [];
    findings.replaceChildren(...told, ...more, ...shown.notes.map((note) => element("p", {}, ...prose(`Note: ${note}`))));
    judge();
    details.replaceChildren(...prose(shown.details));
    draw(figure, shown.figure);
    choose();
    buttons();
  }

  function column(thread, number, blamed) {
    const list = element("ol", { class: "ops", role: "listbox", "aria-label": thread.name, tabindex: 0 });
    let step = "";
    thread.ops.forEach((each, index) => {
      if (each.step !== step && each.step) list.append(element("li", { class: "step", role: "presentation", text: each.step, ...target(number, index, false) }));
      step = each.step;
      const classes = [each.kind, each.fixed ? "fixed" : "", blamed.has(String([number, index])) ? "blamed" : ""].filter(Boolean);
      list.append(element("li", {
        class: classes.join(" "), role: "option", id: `op-${number}-${index}`, "aria-selected": "false", draggable: String(!each.fixed),
        "data-index": index, text: each.text,
        // Before the column gets the focus, which would choose its first operation.
        onpointerdown: () => (chosen = { thread: number, index }),
        onclick: () => { chosen = { thread: number, index }; choose(); list.focus(); },
        ondragstart: (event) => { choose(); event.dataTransfer.setData("text/plain", op().text); event.dataTransfer.effectAllowed = "move"; },
        ...target(number, index, true),
      }));
    });
    list.addEventListener("focus", () => {
      if (chosen?.thread !== number) { chosen = { thread: number, index: 0 }; choose(); }
    });
    return element("section", {}, element("h2", { text: thread.name }), list);
  }

  // Where an operation can be dropped: before the one at this index, or after it on the lower half. Before a step is after the last.
  function target(thread, index, hasHalves) {
    const isTaken = ({ dataTransfer }) => chosen?.thread === thread && dataTransfer.types.includes("text/plain");  // not a file
    const isAfter = ({ currentTarget: { offsetHeight }, offsetY }) => hasHalves && offsetY > offsetHeight / 2;
    const clear = () => columns.querySelectorAll(".over, .under").forEach((each) => each.classList.remove("over", "under"));
    return {
      ondragover: (event) => {
        if (!isTaken(event)) return;
        event.preventDefault();
        clear();
        event.currentTarget.classList.add(isAfter(event) ? "under" : "over");
      },
      ondragleave: clear,
      ondrop: (event) => {
        clear();
        if (!isTaken(event)) return;
        event.preventDefault();
        const before = index + (isAfter(event) ? 1 : 0), by = before - chosen.index - (before > chosen.index ? 1 : 0);
        if (by) edit("move", by);
      },
    };
  }

  function choose() {
    const lists = [...columns.querySelectorAll(".ops")];
    columns.querySelectorAll("[role=option]").forEach((each) => { each.setAttribute("aria-selected", "false"); each.classList.remove("mate"); });
    lists.forEach((list) => list.removeAttribute("aria-activedescendant"));
    if (chosen && !shown.threads[chosen.thread]?.ops[chosen.index]) chosen = null;
    Object.values(act).forEach((each) => (each.disabled = !chosen || op().fixed));
    places.textContent = chosen && !op().fixed && every.checked && meant().length > 1 ? `(${meant().length} places)` : "";
    if (!chosen) return said("Choose an operation: click it, or go through a column with the arrow keys.");
    const list = lists[chosen.thread], at = option(chosen);
    at.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", at.id);
    if (every.checked) meant().forEach((index) => option({ ...chosen, index }).classList.add("mate"));
    at.scrollIntoView({ block: "nearest" });
    const covered = front.getBoundingClientRect().bottom - at.getBoundingClientRect().top;
    if (covered > 0) scrollBy(0, -covered - 8);
    said([op().text, op().step].filter(Boolean).join(", ") + (op().fixed ? ": it stays where it is" : ""), line());
  }

  const option = ({ thread, index }) => columns.querySelectorAll(".ops")[thread].querySelector(`[data-index="${index}"]`);
  const focusChosen = () => chosen && columns.querySelectorAll(".ops")[chosen.thread].focus({ preventScroll: true });
  const cycles = (number) => Math.round(number).toLocaleString("en");

  function said(text, line = "") {
    what.textContent = text;
    source.replaceChildren(...(line ? [element("code", { text: line })] : []));
  }

  function arrivals({ id, name, count, arrivals }) {
    const input = element("input", { type: "number", min: 1, step: 1, value: arrivals, onchange: async () => {
      if (await add(["expect", id, Number(input.value)], `A phase of ${name} takes ${input.value} arrival${input.value === "1" ? "" : "s"}.`)) undone = [];
      else input.value = arrivals;
      buttons();
    } });
    return element("label", {}, `${name}${count > 1 ? `, ${count} barriers` : ""}`, input);
  }

  function parameter([name, { value, words }]) {
    const input = element("input", { type: "number", min: 0, step: "any", value: Number(value.toPrecision(5)), onchange: async () => {
      if (await add(["machine", name, Number(input.value)])) undone = [];
      else input.value = value;
      buttons();
    } });
    return element("label", {}, words, input);
  }

  function finding({ kind, cause, remedy, count, ops, plays }, number) {
    const film = element("div");
    const see = ops.map(([thread, index]) => element("button", { type: "button", text: shown.threads[thread].name + ": " + shown.threads[thread].ops[index].text, onclick: () => { chosen = { thread, index }; choose(); focusChosen(); } }));
    const play = plays && element("button", { type: "button", text: "Play the fault", "aria-expanded": "false", onclick: () => film.hasChildNodes() ? fold() : roll() });
    const fold = () => { film.replaceChildren(); play.setAttribute("aria-expanded", "false"); };
    const roll = async () => {
      const answer = JSON.parse(await ask({ ask: JSON.stringify({ edits, strict: strict.checked, play: number }) }));
      if (answer.error) return complain(answer.error);
      draw(film, answer.figure);
      play.setAttribute("aria-expanded", "true");
      film.scrollIntoView({ block: "nearest" });
      const player = film.querySelector(".pipelib-player"), go = () => player.dataset.ready && player.querySelector('[data-do="play"]').click();
      new MutationObserver(go).observe(player, { attributeFilter: ["data-ready"] });
    };
    return element("section", { class: "finding" },
      element("h3", { text: kind + (count > 1 ? ` (${count} times)` : "") }),
      element("p", {}, ...prose(cause)), element("p", {}, ...prose(remedy)),
      element("div", { class: "lab-bar" }, ...see, ...(play ? [play] : [])), film);
  }

  // A player, whose script runs only if it is made anew.
  function draw(where, html) {
    where.innerHTML = html;
    for (const script of where.querySelectorAll("script")) script.replaceWith(element("script", { text: script.textContent }));
  }

  // The address holds the state, so that whoever leaves the page finds it again. There is none to begin with.
  // The tab holds it, too, since other links of the page take the address, and a file of the reader's own has none.
  function keep(isAsked = false) {
    const state = { subject: subject.name, challenge: challenge?.name, slots: Number(slots.value) || undefined, edits, strict: strict.checked };
    const isBare = !isAsked && !edits.length && !challenge;
    try {
      if (key && isBare && subject.name) sessionStorage.removeItem(key);
      else if (key) sessionStorage.setItem(key, JSON.stringify(subject.name ? state : { ...state, file: { title: subject.title, text: subject.text } }));
    } catch { /* there is no room */ }
    if (!subject.name) return;
    if (isBare && !/^#(laboratory=|chapter-)/.test(location.hash)) return;
    try { history.replaceState(null, "", isBare ? location.pathname + location.search : toAddress(state)); } catch { /* too often for this browser: the next edit is kept */ }
  }

  async function copyLink() {
    keep(true);
    said("The address bar has the link.");
    await navigator.clipboard?.writeText(location.href).then(() => said("The link is copied."), () => {});
  }

  // ---- Keys and files ----

  function keys(event) {
    const isInColumn = event.target.closest(".ops") !== null;
    if ((event.ctrlKey || event.metaKey) && !event.target.matches("input")) {
      const key = event.key.toLowerCase(), does = key === "y" || (key === "z" && event.shiftKey) ? forth : key === "z" ? back : null;
      if (does) { event.preventDefault(); does(); }
      return;
    }
    if (!chosen || !(isInColumn || tools.contains(event.target))) return;
    const ops = shown.threads[chosen.thread].ops, step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.altKey && step) edit("move", step);
    else if (event.key === "Delete") edit("remove");
    else if (!isInColumn) return;
    else if (side) columns.querySelectorAll(".ops")[chosen.thread + side]?.focus();
    else if (step) { chosen.index = Math.min(ops.length - 1, Math.max(0, chosen.index + step)); choose(); }
    else if (event.key === "Home") { chosen.index = 0; choose(); }
    else if (event.key === "End") { chosen.index = ops.length - 1; choose(); }
    else if (event.key.toLowerCase() === "d") edit("repeat");
    else return;
    event.preventDefault();
  }

  const holdsFile = (event) => event.dataTransfer?.types.includes("Files");
  // Anywhere on the page: beside the laboratory a browser would leave it for the file.
  addEventListener("dragover", (event) => { if (holdsFile(event)) { event.preventDefault(); place.classList.add("dropping"); } });
  addEventListener("dragleave", () => place.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    place.classList.remove("dropping");
    if (!holdsFile(event)) return;
    event.preventDefault();
    read(event.dataTransfer.files[0]);
  });

  return { node, open };
}
