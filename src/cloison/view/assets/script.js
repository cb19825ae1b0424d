"use strict";
// Hovering, jumping and filtering; nothing else. Text from data goes through textContent only.
(() => {
  const node = document.getElementById("data");
  const view = document.getElementById("tokens");
  if (!node || !view) return;
  const data = JSON.parse(node.textContent);
  const blocks = data.blocks;
  const by = (id) => document.getElementById(id);
  const panel = by("panel"), title = by("block-title"), number = by("block-number"), sample = by("sample-number");
  const only = by("only-findings"), where = by("jump-said"), plain = by("plain-causal"), notes = by("block-findings");
  let place = 0, current = -1, spans = [];

  const shown = () => blocks.map((_, i) => i).filter((i) => !(only && only.checked) || blocks[i].findings.length);

  function segmentOf(block, index) {
    let end = 0;
    for (let s = 0; s < block.lengths.length; s++) {
      if (index < end + block.lengths[s]) return [s, index - end];
      end += block.lengths[s];
    }
    return [block.lengths.length, index - end];
  }

  function draw(text) {
    // What a reader must see and a browser would swallow: ends of line and tabs.
    return text.replaceAll("\t", "→\t").replaceAll("\n", "⏎\n");
  }

  const counted = (n, noun) => n.toLocaleString("en") + " " + noun + (n === 1 ? "" : "s");

  function describe(block, index) {
    const [s, position] = segmentOf(block, index);
    const label = block.labels ? block.labels[index] : -100;
    const trained = label === -100 ? "context (label −100)" : "target (label " + label + ")";
    const start = block.starts ? block.starts[s] : 0;
    return "token " + index + ": id " + block.ids[index] + " “" + block.text[index] + "” · position " + (position + start) +
      " · " + trained + " · segment " + (s + 1) + " of " + block.lengths.length + " · sample " + block.samples[s];
  }

  function select(index, focus) {
    if (spans[current]) spans[current].classList.remove("on");
    current = Math.max(0, Math.min(index, spans.length - 1));
    if (!spans[current]) return;
    spans[current].classList.add("on");
    panel.textContent = describe(blocks[place], current);
    if (focus) spans[current].scrollIntoView({ block: "nearest" });
  }

  function attention(block) {
    const total = block.lengths.reduce((a, b) => a + b, 0), size = 300, at = (t) => (t / total) * size;
    const svg = by("attention");
    svg.replaceChildren();
    const make = (name, fields) => {
      const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const key of Object.keys(fields)) shape.setAttribute(key, fields[key]);
      svg.append(shape);
      return shape;
    };
    const leaky = plain.getAttribute("aria-pressed") === "true";
    if (leaky) make("polygon", { class: "leakcell", points: "0,0 0," + size + " " + size + "," + size });
    let start = 0;
    block.lengths.forEach((length, s) => {
      const a = at(start), b = at(start + length);
      make("polygon", { class: "c" + (s % 8), points: a + "," + a + " " + a + "," + b + " " + b + "," + b });
      start += length;
      make("line", { class: "thin", x1: 0, y1: b, x2: size, y2: b });
    });
    make("rect", { class: "pad", x: 0, y: 0, width: size, height: size });
    let foreign = 0, own = 0, before = 0;
    block.lengths.forEach((n) => { own += (n * (n + 1)) / 2; foreign += n * before; before += n; });
    by("attention-said").textContent = leaky
      ? "A plain causal mask: " + ((100 * foreign) / (own + foreign)).toFixed(1) + " % of what tokens attend to belongs to other samples."
      : "As the boundaries have it: each token attends to its own sample only (rows are queries, columns are keys).";
    svg.setAttribute("aria-label", by("attention-said").textContent);
  }

  function show(index) {
    if (!blocks.length) return;
    place = Math.max(0, Math.min(index, blocks.length - 1));
    const block = blocks[place];
    title.textContent = "Block " + block.block + ": " + counted(block.lengths.length, "segment") + ", " + block.ids.length.toLocaleString("en") +
      " of " + counted(data.capacity, "token") + ", " + counted(block.labels.filter((l) => l !== -100).length, "target");
    number.value = block.block;
    const fragment = document.createDocumentFragment();
    spans = [];
    let s = 0, inside = 0;
    block.ids.forEach((_, i) => {
      while (s < block.lengths.length && inside === block.lengths[s]) { s += 1; inside = 0; }
      const span = document.createElement("span");
      span.className = "s" + (s % 8) + (block.labels[i] === -100 ? " ctx" : " tgt") + (inside === 0 ? " edge" : "") +
        (block.wrong && block.wrong.includes(i) ? " wrong" : "");
      span.textContent = draw(block.text[i]);
      span.dataset.i = i;
      spans.push(span);
      fragment.append(span);
      inside += 1;
    });
    view.replaceChildren(fragment);
    view.scrollTop = 0;
    current = -1;
    panel.textContent = "Hover over a token, or focus the text and use the arrow keys.";
    notes.replaceChildren(...block.findings.map((text) => {
      const p = document.createElement("p");
      p.className = "finding";
      p.textContent = text;
      return p;
    }));
    attention(block);
  }

  function step(by) {
    const list = shown();
    if (!list.length) { where.textContent = "No block here has findings."; return; }
    const later = by > 0 ? list.find((i) => i > place) : list.findLast((i) => i < place);
    where.textContent = later === undefined ? "That is the " + (by > 0 ? "last" : "first") + " block shown on this page." : "";
    if (later !== undefined) show(later);
  }

  function jump(test, what) {
    const found = blocks.findIndex(test);
    where.textContent = found < 0 ? what + " is not on this page; " + data.left_out : "";
    if (found >= 0) show(found);
    return found;
  }

  view.addEventListener("mouseover", (event) => { if (event.target.dataset.i !== undefined) select(+event.target.dataset.i, false); });
  view.addEventListener("click", (event) => { if (event.target.dataset.i !== undefined) select(+event.target.dataset.i, false); });
  view.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 20, ArrowUp: -20, Home: -1e9, End: 1e9 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    select(current < 0 ? 0 : current + moves[event.key], true);
  });
  by("next").addEventListener("click", () => step(1));
  by("previous").addEventListener("click", () => step(-1));
  number.addEventListener("change", () => jump((b) => b.block === +number.value, "Block " + number.value));
  sample.addEventListener("change", () => {
    if (jump((b) => b.samples.includes(+sample.value), "Sample " + sample.value) < 0) return;
    const block = blocks[place], s = block.samples.indexOf(+sample.value);
    select(block.lengths.slice(0, s).reduce((a, b) => a + b, 0), true);
  });
  if (only) only.addEventListener("change", () => { const list = shown(); if (only.checked && !list.includes(place)) step(list.some((i) => i > place) ? 1 : -1); });
  plain.addEventListener("click", () => {
    plain.setAttribute("aria-pressed", plain.getAttribute("aria-pressed") === "true" ? "false" : "true");
    attention(blocks[place]);
  });
  show(0);
})();
