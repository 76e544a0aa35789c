// Explorers in a page. The pictures are there from the start; the first control that moves loads Python into a worker,
// once for the page, and from then on the course's own code draws. See course_utils/explore/in_page.py.
"use strict";
(() => {
  const SIZE = document.currentScript.dataset.size;  // of what is loaded, in words
  const BASE = new URL("explorers/", document.currentScript.src);
  let python = null, asked = 0;
  const waiting = new Map();

  function ask(question, say) {
    if (!python) {
      say(`Loading Python (${SIZE}, once) …`);
      python = new Worker(new URL("worker.js", BASE), { type: "module" });
      python.onmessage = ({ data }) => {
        waiting.get(data.id)?.(data);
        waiting.delete(data.id);
      };
      python.onerror = (error) => {
        waiting.forEach((done) => done({ error: `Python didn't load here: ${error.message || "no connection"}` }));
        waiting.clear();
        python = null;
      };
    }
    const id = ++asked;
    return new Promise((done) => {
      waiting.set(id, done);
      python.postMessage({ id, ...question });
    });
  }

  function make(tag, attributes = {}, ...inside) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name in made && name !== "list") made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...inside);
    return made;
  }

  class Explorer {
    constructor(box) {
      this.box = box;
      this.about = JSON.parse(box.querySelector("script").textContent);
      this.picture = box.querySelector(".explorer-picture");
      this.said = box.querySelector(".explorer-said");
      this.note = make("p", { className: "explorer-note", role: "status" });
      this.values = {};
      this.inputs = {};
      this.busy = false;
      this.again = false;
      const rows = [make("div", { className: "explorer-controls" }), make("div", { className: "explorer-controls" })];
      for (const control of this.about.controls) rows[Number(control.more)].append(this.input(control));
      const parts = [rows[0]];
      if (rows[1].children.length) parts.push(make("details", {}, make("summary", {}, "more settings"), rows[1]));
      this.settings = make("fieldset", { className: "explorer-settings" },
        make("legend", { className: "explorer-hidden" }, `Settings of explore.${this.about.call}`), ...parts);
      this.picture.before(this.settings, this.note);
      if (this.about.question) this.ask(this.about.question);
      this.grey();
    }

    ask({ text, told }) {
      const words = make("p", { innerHTML: text });
      const menu = make("select", { ariaLabel: "Your guess" }, make("option", { value: "" }, "your guess …"),
        ...Object.keys(told).map((choice) => make("option", { value: choice }, choice)));
      const after = [this.picture.innerHTML, this.said.innerHTML];
      this.picture.innerHTML = this.about.before;
      this.said.textContent = "Your guess first: choose one above. Then the picture is completed, and the controls move.";
      this.settings.disabled = true;
      menu.onchange = () => {
        if (!menu.value) return;
        menu.disabled = true;
        this.settings.disabled = false;
        words.append(" ", make("b", { innerHTML: told[menu.value] }));
        [this.picture.innerHTML, this.said.innerHTML] = after;
        this.grey();
      };
      this.settings.before(make("div", { className: "explorer-ask", role: "group", ariaLabel: "A question" }, words, menu));
    }

    input(control) {
      const { name, kind } = control, id = `${name}-${++asked}`;
      const label = control.unit ? `${control.label} (${control.unit})` : control.label;
      this.values[name] = control.value;
      const set = (value) => { this.values[name] = value; this.draw(); };
      let inputs;
      if (kind === "menu") {
        inputs = [make("select", { id }, ...control.choices.map((words, i) => make("option", { value: i }, words)))];
        inputs[0].onchange = () => set(Number(inputs[0].value));
      } else if (kind === "switch") {
        inputs = [make("input", { id, type: "checkbox" })];
        inputs[0].onchange = () => set(inputs[0].checked);
      } else if (kind === "number in bits") {
        this.bits = make("span", { className: "explorer-bits", role: "group", ariaLabel: "the bits: press one to flip it" });
        inputs = [make("input", { id, type: "text", autocomplete: "off" }), this.bits];
        inputs[0].onchange = () => set(inputs[0].value);
      } else {
        const { low, high, base, step, whole } = control;
        const box = make("input", { id, type: "number", min: low, max: high, step: whole ? 1 : "any" });
        const slider = make("input", { type: "range", min: control.from, max: control.to, step, ariaLabel: label });
        const place = (value) => { slider.value = base ? Math.log(value) / Math.log(base) : value; };
        slider.oninput = () => {
          const value = base ? base ** Number(slider.value) : Number(slider.value);
          box.value = whole ? Math.round(value) : Number(value.toPrecision(base ? 2 : 12));
          box.value = Math.min(Math.max(Number(box.value), low), high);
          set(Number(box.value));
        };
        box.onchange = () => {
          const typed = Number(box.value), value = Math.min(Math.max(whole ? Math.round(typed) : typed, low), high);
          this.say(value === typed ? "" : `${control.label}: a ${whole ? "whole " : ""}number from ${low} to ${high}.`);
          box.value = value;
          place(value);
          set(value);
        };
        inputs = [box, slider];
        this.inputs[name] = { inputs, show: (value) => { box.value = value; place(value); }, only: control.only_with };
      }
      this.inputs[name] ??= { inputs, only: control.only_with,
        show: (value) => { if (kind === "switch") inputs[0].checked = value; else inputs[0].value = value; } };
      this.inputs[name].show(control.value);
      return make("div", { className: `explorer-control explorer-${kind.replaceAll(" ", "-")}`, title: control.why }, make("label", { htmlFor: id }, label), ...inputs);
    }

    grey() {
      for (const { inputs, only } of Object.values(this.inputs))
        for (const input of inputs) input.disabled = Boolean(only && !this.values[only]);
    }

    say(words) { this.note.textContent = words; }

    async draw(flipped = null) {
      this.grey();
      if (this.busy) { this.again = true; return; }  // the newest settings are drawn, those between are not
      this.busy = true;
      do {
        this.again = false;
        const drawn = await ask({ call: this.about.call, values: this.values, flipped }, (words) => this.say(words));
        if (this.note.textContent.startsWith("Loading")) this.say("");
        flipped = null;
        if (drawn.error) { this.say(drawn.error); continue; }
        this.picture.innerHTML = drawn.svg;
        this.said.innerHTML = drawn.summary;
        if (this.again) continue;
        for (const [name, value] of Object.entries(drawn.values)) {
          this.values[name] = value;
          if (!this.inputs[name].inputs.includes(document.activeElement)) this.inputs[name].show(value);
        }
        if (this.bits) this.showBits(drawn.bits);
      } while (this.again);
      this.busy = false;
    }

    showBits(bits) {
      this.bits.replaceChildren(...bits.map(([on, part], i) => make("button",
        { type: "button", className: `bit-${part}`, ariaPressed: String(on), title: `${part}, bit ${bits.length - 1 - i}`,
          onclick: () => this.draw(i) }, on ? "1" : "0")));
    }
  }

  document.querySelectorAll(".explorer").forEach((box) => new Explorer(box));
})();
