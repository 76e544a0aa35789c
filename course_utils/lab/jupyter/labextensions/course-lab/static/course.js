// An extension of JupyterLab, written the way JupyterLab loads it, so that nothing has to be built. It puts a link to the
// course's first page to the left of the menus, and gives the tabs of exercises and solutions titles that begin
// differently from the lesson's, whose file name begins like theirs.
(() => {
  let shared;

  async function home(app) {
    const widgets = Object.values(shared["@lumino/widgets"])[0];
    const { Widget } = (await widgets.get())();
    const link = document.createElement("a");
    link.textContent = "All lessons";
    link.title = "The course's first page: every lesson, and what you've done of it";
    link.href = app.serviceManager.serverSettings.baseUrl + "course";
    link.style.cssText = "align-self:center;padding:0 10px;white-space:nowrap;color:var(--jp-content-link-color)";
    link.addEventListener("click", async event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a tab or a window of its own
      event.preventDefault();
      await app.commands.execute("docmanager:save-all").catch(console.warn);
      location.assign(link.href);
    });
    const node = document.createElement("div");
    node.style.display = "flex";
    node.append(link);
    const widget = new Widget({ node });
    widget.id = "course-home";
    app.shell.add(widget, "top", { rank: 50 });
  }

  function title(widget) {
    const found = /(?:^|\/)(\d\d)_([^/]*)_(exercises|solutions)\.ipynb$/.exec(widget.context?.path ?? "");
    if (found) widget.title.label = `${found[1]} ${found[3]} · ${found[2].replaceAll("_", " ")}`;
  }

  function activate(app) {
    const known = new WeakSet();
    app.shell.layoutModified?.connect(() => {
      for (const widget of app.shell.widgets("main")) {
        title(widget);
        if (!known.has(widget)) widget.title.changed.connect(() => title(widget));
        known.add(widget);
      }
    });
    return home(app);
  }

  const plugin = { id: "course-lab:plugin", description: "The way back to the first page.", autoStart: true, activate };
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["course-lab"] = {
    init: scope => { shared = scope; },
    get: async () => () => ({ __esModule: true, default: plugin }),
  };
})();
