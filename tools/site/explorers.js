// Explorers in a page. The pictures are there from the start; the first control that moves loads Python into a worker,
// once for the page, and from then on the course's own code draws. See course_utils/explore/in_page.py.
"use strict";
(() => {
  const SIZE = document.currentScript.dataset.size;  // of what is loaded, in words
  const WORKER = new URL("explorers/worker.js", document.currentScript.src);
  let python = null, ready = false, asked = 0;
  const waiting = new Map();

  function lost(why) {  // everybody who waits is told, and the next move tries again
    waiting.forEach((done) => done({ error: `Python didn't load here: ${why}. Move a control to try again.` }));
    waiting.clear();
    python?.terminate();
    python = null;
    ready = false;
  }

  function ask(question) {
    return new Promise((done) => {
      const id = ++asked;
      waiting.set(id, done);
      try {
        if (!python) {
          python = new Worker(WORKER, { type: "module" });
          python.onerror = (error) => lost(error.message || "no connection");
          python.onmessage = ({ data }) => {
            if (data.lost) return lost(data.lost);
            ready = true;
            waiting.get(data.id)?.(data);
            waiting.delete(data.id);
          };
        }
        python.postMessage({ id, ...question });
      } catch (error) {  // a page that was opened as a file may start no worker
        lost(error.message);
      }
    });
  }

  function make(tag, attributes = {}, ...inside) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...inside);
    return made;
  }

  class Explorer {
    constructor(box) {
      this.about = JSON.parse(box.querySelector("script").textContent);
      this.picture = box.querySelector(".explorer-picture");
      this.said = box.querySelector(".explorer-said");
      this.note = make("p", { className: "explorer-note", role: "status" });
      this.values = {};
      this.inputs = {};
      this.flips = [];
      this.busy = this.again = false;
      const rows = [make("div", { className: "explorer-controls" }), make("div", { className: "explorer-controls" })];
      for (const control of this.about.controls) rows[Number(control.more)].append(this.input(control));
      const parts = [rows[0]];
      if (rows[1].children.length) parts.push(make("details", {}, make("summary", {}, "more settings"), rows[1]));
      const name = `Settings of explore.${this.about.call}`;
      this.settings = make("fieldset", { className: "explorer-settings" },
        make("legend", { className: "explorer-hidden" }, name), ...parts);
      this.picture.before(this.settings, this.note);
      if (this.about.question) this.ask(this.about.question);
      if (this.bits) this.showBits(this.about.bits);
      this.grey();
      box.classList.add("explorer-live");
    }

    // The question comes before the answer, as in the notebook.
    ask({ text, told }) {
      const words = make("p", { innerHTML: text });
      const menu = make("select", { ariaLabel: "Your guess" }, make("option", { value: "" }, "your guess …"),
        ...Object.keys(told).map((choice) => make("option", { value: choice }, choice)));
      const button = make("button", { type: "button", disabled: true }, "That's my guess");
      menu.onchange = () => { button.disabled = !menu.value; };
      const after = [this.picture.innerHTML, this.said.innerHTML];
      this.picture.innerHTML = this.about.before;
      this.said.textContent = "Your guess first. Then the picture is completed, and the controls move.";
      this.settings.disabled = true;
      button.onclick = () => {
        menu.disabled = button.disabled = true;
        this.settings.disabled = false;
        words.append(" ", make("b", { innerHTML: told[menu.value] }));
        words.tabIndex = -1;
        words.focus();
        [this.picture.innerHTML, this.said.innerHTML] = after;
        this.grey();
      };
      const group = { className: "explorer-ask", role: "group", ariaLabel: "A question" };
      this.settings.before(make("div", group, words, menu, " ", button));
    }

    input(control) {
      const { name, kind } = control, id = `${name}-${++asked}`;
      const label = control.unit ? `${control.label} (${control.unit})` : control.label;
      this.values[name] = control.value;
      const set = (value) => { this.values[name] = value; this.draw(); };
      let inputs, show = (value) => { inputs[0].value = value; };
      if (kind === "menu") {
        inputs = [make("select", { id }, ...control.choices.map((words, i) => make("option", { value: i }, words)))];
        inputs[0].onchange = () => set(Number(inputs[0].value));
      } else if (kind === "switch") {
        inputs = [make("input", { id, type: "checkbox" })];
        inputs[0].onchange = () => set(inputs[0].checked);
        show = (value) => { inputs[0].checked = value; };
      } else if (kind === "number in bits") {
        const group = { className: "explorer-bits", role: "group", ariaLabel: "the bits: press one to flip it" };
        this.bits = make("span", group);
        inputs = [make("input", { id, type: "text", autocomplete: "off" }), this.bits];
        inputs[0].onchange = () => set(inputs[0].value);
      } else {
        const { low, high, base, step, whole } = control;
        const within = (value) => Math.min(Math.max(whole ? Math.round(value) : value, low), high);
        const box = make("input", { id, type: "number", min: low, max: high, step: whole ? 1 : "any" });
        const slider = make("input", { type: "range", min: control.from, max: control.to, step, ariaLabel: label });
        show = (value) => {
          box.value = value;
          slider.value = base ? Math.log(value) / Math.log(base) : value;
          slider.ariaValueText = String(value);
        };
        slider.oninput = () => {
          const value = base ? base ** Number(slider.value) : Number(slider.value);
          box.value = within(Number(value.toPrecision(base && !whole ? 2 : 12)));
          slider.ariaValueText = box.value;
          set(Number(box.value));
        };
        box.onchange = () => {
          const typed = Number(box.value), value = within(typed);
          show(value);
          set(value);
          if (value !== typed) this.say(`${control.label}: a ${whole ? "whole " : ""}number from ${low} to ${high}.`);
        };
        inputs = [box, slider];
      }
      this.inputs[name] = { inputs, show, only: control.only_with };
      show(control.value);
      const looks = { className: `explorer-control explorer-${kind.replaceAll(" ", "-")}`, title: control.why };
      return make("div", looks, make("label", { htmlFor: id }, label), ...inputs);
    }

    grey() {
      for (const { inputs, only } of Object.values(this.inputs))
        for (const input of inputs) input.disabled = Boolean(only && !this.values[only]);
    }

    say(words) { this.note.textContent = words; }

    // The newest settings are drawn, those between are not; each flip of a bit counts.
    async draw(flipped) {
      this.grey();
      this.say("");
      if (flipped !== undefined) this.flips.push(flipped);
      this.again = true;
      if (this.busy) return;
      this.busy = true;
      try {
        while (this.again || this.flips.length) {
          this.again = false;
          if (!ready) this.say(`Loading Python (${SIZE}, once) …`);
          const sent = { ...this.values };
          const drawn = await ask({ call: this.about.call, values: sent, flipped: this.flips.shift() ?? null });
          if (this.note.textContent.startsWith("Loading")) this.say("");
          if (drawn.error) {
            this.say(drawn.error);
            continue;
          }
          this.picture.innerHTML = drawn.svg;
          this.said.innerHTML = drawn.summary;
          for (const [name, value] of Object.entries(drawn.values)) {
            if (this.values[name] !== sent[name]) continue;  // somebody has moved it on meanwhile
            this.values[name] = value;
            if (!this.inputs[name].inputs.includes(document.activeElement)) this.inputs[name].show(value);
          }
          if (this.bits) this.showBits(drawn.bits);
        }
      } finally {
        this.busy = false;
      }
    }

    showBits(bits) {
      while (this.bits.children.length > bits.length) this.bits.lastChild.remove();
      bits.forEach(([on, part], i) => {
        const bit = this.bits.children[i] ?? this.bits.appendChild(make("button", { type: "button" }));
        bit.onclick = () => this.draw(i);
        bit.className = `bit-${part}`;
        bit.title = `${part}, bit ${bits.length - 1 - i}`;
        bit.ariaPressed = String(on);
        bit.textContent = on ? "1" : "0";
      });
    }
  }

  document.querySelectorAll(".explorer").forEach((box) => new Explorer(box));
})();
