// Finds sections while the reader types, in the dialog and on the search page; needs no server.
//
// The model. The index (tools/sphinx_search.py) is a script that calls `bookSearch.take`. It is
// loaded when a search begins. A word of the query is in an entry if it begins some word of its
// heading, its text or its page's title; endings of words do not count, nor do words as "how" and
// "my". Entries with all words of the query are found, or, if there is none, those with the most.
// They rank by how much of it is in the heading, whether its words stand side by side there or in the
// text, and how often they stand there; what else a section is called counts as its heading, and one
// that is called as the query comes first, to the letter before all, but for lists. What is shown of
// an entry begins with the sentence that has the words.
const bookSearch = (() => {
  const MOST = 30, LENGTH = 220;
  const root = document.documentElement.dataset.content_root;
  let index, waiting;

  const load = (then) => {
    if (index) return then();
    const isFirst = !waiting;
    waiting = then;
    if (isFirst) document.head.append(Object.assign(document.createElement("script"), { src: `${root}_static/search_index.js` }));
  };
  const take = ({ pages, entries }) => {
    index = entries.map(([page, anchor, heading, also, prose, rest]) => {
      const [address, title, isList] = pages[page];
      const names = new Set([heading, ...also.split("; ")].map((name) => stems(name).join(" ")));
      return { address, title, isList, anchor, heading, also, names, prose, text: `${prose} ${rest}` };
    });
    waiting?.();
  };

  // Words, as what they begin with: "conflicts", "loading" and "copies" are found by their stems.
  const EMPTY = new Set("a an and do does for how i in is it my of on the to what when which why with".split(" "));
  const all = (query) => query.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  const telling = (words) => (words.some((word) => !EMPTY.has(word)) ? words.filter((word) => !EMPTY.has(word)) : words);
  const stems = (query) => telling(all(query))
    .map((word) => (word.length > 4 ? word.replace(/(?:ies|ing|ed|es|s|e|y)$/, "") : word));
  const spelt = (text) => telling(all(text)).join(" ");
  const begins = (stem) => `(?<![\\p{L}\\p{N}])${stem}`;
  const finds = (source) => new RegExp(source, "giu");
  const count = (expression, text) => text.match(expression)?.length ?? 0;

  const find = (query) => {
    const words = stems(query);
    if (!words.length) return [];
    const each = words.map((word) => finds(begins(word)));
    const together = finds(words.map(begins).join("[\\p{L}\\p{N}]*[^\\p{L}\\p{N}]+"));
    const rank = (entry) => {
      const { heading, also, title, text, names } = entry, named = `${heading} ; ${also}`;
      let score = 0, has = 0, inHeading = 0;
      for (const word of each) {
        const here = count(word, named), below = count(word, text);
        has += here + below + count(word, title) > 0;
        inHeading += here > 0;
        score += Math.min(below, 5);
      }
      score += (40 + 40 / (1 + heading.length / 20)) * (inHeading / each.length) ** 2;
      if (names.has(words.join(" "))) score += spelt(heading) === spelt(query) ? 63 : 60;
      if (each.length > 1) score += 40 * (count(together, named) > 0) + 10 * Math.min(count(together, text), 3);
      return { entry, has, score: entry.isList ? score / 2 : score };
    };
    const ranked = index.map(rank), most = Math.max(1, ...ranked.map(({ has }) => has));
    return ranked.filter(({ has }) => has === most)
      .sort((one, other) => other.score - one.score)
      .map(({ entry }) => ({ ...entry, lacks: words.length - most, said: said(entry.prose || entry.text, together, each) }));
  };

  // The sentence with the words, side by side if they are so anywhere; else the first; and what follows.
  const said = (text, together, each) => {
    const places = [together, ...each].map((expression) => text.search(expression));
    const place = places.find((at) => at >= 0) ?? 0;
    const before = text.slice(0, place), start = before.search(/(?:(?<=[.?!] )|^)(?:(?![.?!] ).)*$/su);
    const from = place - start > 120 ? before.lastIndexOf(" ", place - 60) + 1 : start;
    const end = text.length > from + LENGTH ? text.lastIndexOf(" ", from + LENGTH) : text.length;
    return (from > start ? "… " : "") + text.slice(from, end) + (end < text.length ? " …" : "");
  };

  const element = (name, text = "", properties = {}) =>
    Object.assign(document.createElement(name), { textContent: text }, properties);
  const marked = (text, words) => {
    const paragraph = element("p");
    let from = 0;
    for (const { 0: word, index: at } of text.matchAll(finds(`(?:${words.map(begins).join("|")})[\\p{L}\\p{N}]*`))) {
      paragraph.append(text.slice(from, at), element("mark", word));
      from = at + word.length;
    }
    paragraph.append(text.slice(from));
    return paragraph;
  };

  const show = (place, query) => {
    if (!query.trim()) return place.replaceChildren();
    load(() => {
      const found = find(query), list = element("ul");
      for (const { address, anchor, title, heading, said } of found.slice(0, MOST)) {
        const item = element("li");
        item.append(element("a", heading, { href: `${root}${address}#${anchor}` }));
        if (heading !== title) item.append(element("span", title));
        item.append(marked(said, stems(query)));
        list.append(item);
      }
      place.replaceChildren(element("p", summary(found, query.trim()), { role: "status" }), list);
    });
  };
  const summary = (found, query) => {
    if (!found.length) return `No section has “${query}”.`;
    const sections = `${found.length} section${found.length === 1 ? "" : "s"}`;
    const which = found[0].lacks ? `No section has all of “${query}”; ${sections} with most of it` : `${sections} with “${query}”`;
    return found.length > MOST ? `${which}, of which these are the first ${MOST}` : which;
  };

  addEventListener("DOMContentLoaded", () => {
    for (const input of document.querySelectorAll("form.bd-search input")) {
      const page = input.closest(".bd-search-container");
      const place = page?.querySelector("#search-results") ?? element("div");
      place.classList.add("book-results");
      if (!page) input.closest("dialog").append(place);
      input.addEventListener("input", () => show(place, input.value));
      input.addEventListener("focus", () => load(() => {}), { once: true });
      const asked = page && new URLSearchParams(location.search).get("q");
      if (asked) show(place, (input.value = asked));
    }
  });
  return { take, find };
})();
