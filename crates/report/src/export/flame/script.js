(() => {
  const svg = document.getElementById("flame");
  const part = (name) => document.getElementById("flame-" + name);
  const number = (element, name) => Number(element.getAttribute(name));
  const bars = [...svg.querySelectorAll(".frame")].map((group) => {
    const [title, rect, text] = group.children;
    const facts = title.textContent;
    return {
      group, rect, text, facts,
      name: facts.slice(0, facts.lastIndexOf(" (")),
      x: number(rect, "x"), y: number(rect, "y"), width: number(rect, "width"),
    };
  });
  const all = bars[0];
  // Positions are rounded to hundredths of a pixel.
  const slack = 0.02;

  function draw(bar, x, width) {
    const fits = Math.floor((width - 6) / 6.65);
    const name = [...bar.name];
    bar.rect.setAttribute("x", x);
    bar.rect.setAttribute("width", Math.max(width, 0.1));
    bar.text.setAttribute("x", x + 3);
    bar.text.textContent = name.length <= fits ? bar.name : fits < 3 ? "" : name.slice(0, fits - 2).join("") + "..";
  }

  function zoom(to) {
    const factor = to.width > 0 ? all.width / to.width : 1;
    for (const bar of bars) {
      const end = bar.x + bar.width;
      const isBelow = bar.y >= to.y && bar.x <= to.x + slack && end >= to.x + to.width - slack;
      const isAbove = bar.y < to.y && bar.x >= to.x - slack && end <= to.x + to.width + slack;
      bar.group.style.display = isBelow || isAbove ? "" : "none";
      bar.group.classList.toggle("below", isBelow && bar !== to);
      if (isBelow) draw(bar, all.x, all.width);
      if (isAbove) draw(bar, all.x + (bar.x - to.x) * factor, bar.width * factor);
    }
    part("reset").setAttribute("visibility", to === all ? "hidden" : "visible");
  }

  function search(wanted) {
    const found = bars.filter((bar) => {
      const matches = bar !== all && wanted !== "" && bar.name.toLowerCase().includes(wanted.toLowerCase());
      bar.group.classList.toggle("found", matches);
      return matches;
    });
    // A bar on top of another one that was found does not count again.
    let [end, width] = [-1, 0];
    for (const bar of found.sort((a, b) => a.x - b.x || b.width - a.width)) {
      width += Math.max(0, bar.x + bar.width - Math.max(end, bar.x));
      end = Math.max(end, bar.x + bar.width);
    }
    const share = all.width > 0 ? (width * 100) / all.width : 0;
    part("found").textContent = wanted === "" ? "" : "found: " + share.toFixed(2) + " %";
    part("search").textContent = wanted === "" ? "Search" : "Reset search";
  }

  for (const bar of bars) {
    bar.group.addEventListener("click", () => zoom(bar));
    bar.group.addEventListener("mouseover", () => { part("facts").textContent = bar.facts; });
    bar.group.addEventListener("mouseout", () => { part("facts").textContent = ""; });
  }
  part("reset").addEventListener("click", () => zoom(all));
  part("search").addEventListener("click", () => {
    const isOn = part("search").textContent !== "Search";
    search(isOn ? "" : window.prompt("Part of a name", "") || "");
  });
})();
