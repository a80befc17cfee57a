// What the pages do beyond their HTML: the live list of events and the map of the fleet. Text goes into the page as
// text, never as markup.
"use strict";

(() => {
  const EVENTS_SHOWN_MAX = 500;

  function cell(row, text, className) {
    const made = document.createElement("td");
    if (className) made.className = className;
    made.textContent = text;
    row.append(made);
    return made;
  }

  function eventRow(event) {
    const row = document.createElement("tr");
    cell(row, event.logIndex, "number");
    const what = document.createElement("th");
    what.scope = "row";
    if (event.address) {
      const link = document.createElement("a");
      link.href = event.address;
      link.textContent = event.id;
      what.append(link);
    } else {
      what.append(event.id);
    }
    if (event.name) {
      const name = document.createElement("span");
      name.className = "name";
      name.textContent = event.name;
      what.append(" ", name);
    }
    row.append(what);
    cell(row, event.owner);
    const state = document.createElement("span");
    state.className = "badge";
    // A class is one word of the server's; anything else would be refused by the list of classes.
    if (/^[a-z-]+$/.test(event.state)) state.classList.add(event.state);
    state.textContent = event.state;
    cell(row, "").append(state);
    const text = document.createElement("bdi");
    text.textContent = event.text;
    cell(row, "", "message").append(text);
    return row;
  }

  // Why there is no stream: a browser does not say with what it was refused.
  async function whyNot() {
    const again = " Load the page again for newer events.";
    try {
      const answer = await fetch("/events", { method: "HEAD" });
      if (answer.ok) return "Not live: this replica has as many streams open as it may." + again;
      if (answer.status === 403) return "Not live: this certificate is not accepted any more.";
      return "Not live: this replica does not answer for the moment." + again;
    } catch {
      return "Not live: this replica cannot be reached." + again;
    }
  }

  function followEvents(status) {
    const body = document.getElementById("events");
    const pause = document.getElementById("pause");
    if (!body || !window.EventSource) return;
    const source = new EventSource(status.dataset.stream);
    let skipped = 0;
    let waiting = [];
    let isPaused = false;
    const say = (text) => { if (status.textContent !== text) status.textContent = text; };
    const sayLive = () => {
      const left = skipped > 0 ? " " + skipped + " changes came too fast and are left out." : "";
      say(isPaused ? "Paused; newer changes wait." + left : "Live." + left);
    };
    const show = (events) => {
      for (const event of events) body.prepend(eventRow(event));
      while (body.rows.length > EVENTS_SHOWN_MAX) {
        const last = body.rows[body.rows.length - 1];
        // What is in use stays until it is left.
        if (last.contains(document.activeElement)) break;
        last.remove();
      }
    };
    source.addEventListener("open", sayLive);
    source.addEventListener("change", (message) => {
      const event = JSON.parse(message.data);
      if (!isPaused) return show([event]);
      waiting.push(event);
      if (waiting.length > EVENTS_SHOWN_MAX) {
        waiting.shift();
        skipped += 1;
      }
    });
    source.addEventListener("skipped", (message) => {
      skipped += Number(message.data);
      sayLive();
    });
    source.addEventListener("end", (message) => {
      source.close();
      say("The stream has ended: " + JSON.parse(message.data).message + " Load the page again.");
    });
    source.addEventListener("error", async () => {
      if (source.readyState === EventSource.CLOSED) say(await whyNot());
      else say("Connecting again.");
    });
    pause.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      if (!isPaused) {
        show(waiting);
        waiting = [];
      }
      sayLive();
    });
  }

  // Characters of an output that a page keeps: its end.
  const OUTPUT_CHARS_MAX = 64000;

  // Shows the end of a worker's output and what follows, as text.
  function followOutput(target) {
    const status = document.getElementById("output-status");
    const rank = document.getElementById("rank");
    document.getElementById("output-choice").hidden = false;
    let source;
    const add = (text) => {
      const isAtEnd = target.scrollTop + target.clientHeight >= target.scrollHeight - 8;
      target.textContent = (target.textContent + text).slice(-OUTPUT_CHARS_MAX);
      if (isAtEnd) target.scrollTop = target.scrollHeight;
    };
    document.getElementById("read-output").addEventListener("click", () => {
      if (source) source.close();
      const address = new URL(target.dataset.source, window.location.href);
      address.searchParams.set("rank", String(Number.parseInt(rank.value, 10) || 0));
      source = new EventSource(address);
      target.hidden = false;
      source.addEventListener("open", () => {
        // One that connects again begins with the end once more.
        target.textContent = "";
        status.textContent = "Live.";
      });
      source.addEventListener("output", (message) => {
        const piece = JSON.parse(message.data);
        if (piece.dropped > 0) add("[" + piece.dropped + " bytes were not kept]\n");
        add(piece.text);
      });
      source.addEventListener("end", (message) => {
        source.close();
        status.textContent = "The output has ended: " + JSON.parse(message.data).message;
      });
      source.addEventListener("error", () => {
        const isOver = source.readyState === EventSource.CLOSED;
        status.textContent = isOver ? "This output cannot be read now." : "Connecting again.";
      });
    });
  }

  const STEP = 8;
  const GAP = 4;
  // Pixels of one canvas: phones draw nothing on larger ones.
  const CANVAS_PIXELS_MAX = 4000000;
  // Holders of a host that are named.
  const OWNERS_NAMED_MAX = 4;
  const COLOURS = ["state", "health", "tenant", "job"];
  // Lines of hosts that PageUp and PageDown go by.
  const PAGE_LINES = 20;
  // How much larger than at first the map can be drawn, and by how many pixels a key moves what is shown of it.
  const ZOOMS = [1, 1.5, 2, 3, 4];
  const PAN_STEP = 64;

  function drawHosts(canvas, hosts, layout, shapes, colourOf) {
    const { columnWidth, columns, lines, ratio, step, zoom } = layout;
    const [width, height] = [columns * columnWidth, lines * step];
    canvas.width = Math.ceil(width * ratio);
    canvas.height = Math.ceil(height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    hosts.forEach((host, index) => {
      const [x, y] = [(index % columns) * columnWidth, Math.floor(index / columns) * step];
      for (let device = 0; device < host.devices.length; device += 1) {
        const shape = shapes[host.devices[device]] || shapes.l;
        pen.setTransform(ratio * zoom, 0, 0, ratio * zoom, (x + device * step) * ratio, y * ratio);
        pen.fillStyle = colourOf(host, device, shape);
        pen.fill(shape.path);
      }
    });
  }

  // Each host is a row of its devices; hosts fill lines from the left. A large cluster is drawn in pieces.
  function drawCluster(target, cluster, shapes, map) {
    const title = document.createElement("h3");
    title.textContent = cluster.region + "/" + cluster.cluster;
    target.append(title);
    const all = cluster.blocks.flatMap((block) => block.hosts.map(
      ([name, devices, owners]) => ({ block: block.block, name, devices, owners })));
    const widest = all.reduce((most, host) => Math.max(most, host.devices.length), 1);
    // Hosts stay in their lines whatever the zoom: what does not fit is scrolled to.
    const unzoomed = widest * STEP + GAP;
    const columns = Math.max(1, Math.min(Math.floor((target.clientWidth || 320) / unzoomed), all.length));
    const [step, columnWidth] = [STEP * map.zoom, unzoomed * map.zoom];
    const ratio = window.devicePixelRatio || 1;
    const linesMax = Math.max(1, Math.floor(CANVAS_PIXELS_MAX / (columns * columnWidth * step * ratio * ratio)));
    for (let first = 0; first < all.length; first += linesMax * columns) {
      const hosts = all.slice(first, first + linesMax * columns);
      const layout = { columnWidth, columns, lines: Math.ceil(hosts.length / columns), ratio, step, zoom: map.zoom };
      const canvas = document.createElement("canvas");
      target.append(canvas);
      drawHosts(canvas, hosts, layout, shapes, map.colourOf);
      const piece = { canvas, cluster, hosts, layout, first: map.count };
      map.pieces.push(piece);
      map.count += hosts.length;
      const under = (event) => {
        const column = Math.floor(event.offsetX / columnWidth);
        return column < columns ? hosts[Math.floor(event.offsetY / step) * columns + column] : undefined;
      };
      canvas.addEventListener("mousemove", (event) => {
        const host = under(event);
        if (host) map.say(hostText(cluster, host, map.owners));
      });
      canvas.addEventListener("click", (event) => {
        const host = map.wasDragged ? undefined : under(event);
        if (host) window.location.assign(hostAddress(host));
      });
    }
  }

  function hostText(cluster, host, owners) {
    const held = [...new Set(host.owners)].filter((number) => number > 0).map((number) => owners[number - 1]);
    const more = held.length > OWNERS_NAMED_MAX ? " and " + (held.length - OWNERS_NAMED_MAX) + " more" : "";
    const text = held.length > 0 ? ": " + held.slice(0, OWNERS_NAMED_MAX).join(", ") + more : "";
    return cluster.region + "/" + cluster.cluster + "/" + host.block + "/" + host.name + text;
  }

  // The same name has the same colour on every map.
  function colourOfName(name, isDark) {
    let hash = 7;
    for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) % 1000003;
    return "hsl(" + (hash * 137) % 360 + " 60% " + (isDark ? 65 : 38) + "%)";
  }

  // What colours the devices of a map: their state, whether they can be used, or who holds them.
  function colouring(by, shapes, owners) {
    if (by === "state") return (host, device, shape) => shape.colour;
    if (by === "health") {
      const unfit = "ucl";
      return (host, device, shape) => (unfit.includes(host.devices[device]) ? shape.colour : shapes.f.colour);
    }
    const isDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    const colours = owners.map((name) => colourOfName(name, isDark));
    return (host, device, shape) => colours[(host.owners?.[device] ?? 0) - 1] ?? shapes.c.colour;
  }

  function hostAddress(host) {
    const at = new URLSearchParams(window.location.search).get("at");
    return "/nodes/" + encodeURIComponent(host.name) + (at ? "?at=" + encodeURIComponent(at) : "");
  }

  // Hosts that one press of a key goes on by, in the layout of the piece that the frame is in.
  const KEY_STEPS = {
    ArrowLeft: () => -1,
    ArrowRight: () => 1,
    ArrowUp: ({ columns }) => -columns,
    ArrowDown: ({ columns }) => columns,
    PageUp: ({ columns }) => -columns * PAGE_LINES,
    PageDown: ({ columns }) => columns * PAGE_LINES,
    Home: () => -Infinity,
    End: () => Infinity,
  };

  const PANS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  // The keys + - 0 and the buttons zoom, and a drag with the mouse moves what is shown.
  function zoomAndDrag(target, map, draw) {
    const zoomTo = (zoom) => {
      if (zoom === undefined || zoom === map.zoom) return;
      const factor = zoom / map.zoom;
      const [x, y] = [target.scrollLeft + target.clientWidth / 2, target.scrollTop + target.clientHeight / 2];
      map.zoom = zoom;
      target.classList.toggle("zoomed", zoom > 1);
      draw();
      target.scrollTo(x * factor - target.clientWidth / 2, y * factor - target.clientHeight / 2);
      map.say("Zoom " + zoom * 100 + " %.");
    };
    const byStep = (steps) => zoomTo(ZOOMS[ZOOMS.indexOf(map.zoom) + steps]);
    target.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.key === "+" || event.key === "=") byStep(1);
      else if (event.key === "-") byStep(-1);
      else if (event.key === "0") zoomTo(1);
      else return;
      event.preventDefault();
    });
    document.getElementById("zoom-in").addEventListener("click", () => byStep(1));
    document.getElementById("zoom-out").addEventListener("click", () => byStep(-1));
    let from;
    target.addEventListener("pointerdown", (event) => {
      map.wasDragged = false;
      // A finger scrolls by itself.
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      from = { x: event.clientX, y: event.clientY, left: target.scrollLeft, top: target.scrollTop };
    });
    window.addEventListener("pointermove", (event) => {
      if (!from) return;
      const [x, y] = [event.clientX - from.x, event.clientY - from.y];
      // A hand that shakes while it clicks drags nothing.
      if (Math.abs(x) + Math.abs(y) > 4) map.wasDragged = true;
      if (map.wasDragged) target.scrollTo(from.left - x, from.top - y);
    });
    window.addEventListener("pointerup", () => { from = undefined; });
  }

  // The keyboard moves a frame from host to host; Enter opens the host in it.
  function stepThroughHosts(target, map) {
    const pieceOf = (at) => map.pieces.find((piece) => at < piece.first + piece.hosts.length);
    map.frame = document.createElement("div");
    map.frame.className = "frame";
    map.place = () => {
      const piece = map.at === undefined ? undefined : pieceOf(map.at);
      map.frame.hidden = piece === undefined;
      if (!piece) return;
      const { columnWidth, columns, step } = piece.layout;
      const [index, host] = [map.at - piece.first, piece.hosts[map.at - piece.first]];
      map.frame.style.left = piece.canvas.offsetLeft + (index % columns) * columnWidth - 2 + "px";
      map.frame.style.top = piece.canvas.offsetTop + Math.floor(index / columns) * step - 2 + "px";
      map.frame.style.width = host.devices.length * step + 4 + "px";
      map.frame.style.height = step + 4 + "px";
      target.append(map.frame);
    };
    target.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || map.count === 0) return;
      // With Shift the arrows move what is shown, and not the frame.
      if (event.shiftKey && PANS[event.key]) {
        const [x, y] = PANS[event.key];
        target.scrollBy(x * PAN_STEP, y * PAN_STEP);
        // A map that is shown as a whole is moved with its page.
        if (target.scrollHeight <= target.clientHeight) window.scrollBy(0, y * PAN_STEP);
        event.preventDefault();
        return;
      }
      const piece = pieceOf(map.at ?? 0);
      if (event.key === "Enter" && map.at !== undefined) {
        window.location.assign(hostAddress(piece.hosts[map.at - piece.first]));
      } else if (KEY_STEPS[event.key]) {
        const next = map.at === undefined ? 0 : map.at + KEY_STEPS[event.key](piece.layout);
        map.at = Math.min(Math.max(next, 0), map.count - 1);
        map.place();
        map.frame.scrollIntoView({ block: "nearest", inline: "nearest" });
        const now = pieceOf(map.at);
        map.say(hostText(now.cluster, now.hosts[map.at - now.first], map.owners));
      } else {
        return;
      }
      event.preventDefault();
    });
  }

  // Shapes and colours are those of the legend.
  function shapesOfLegend() {
    const shapes = {};
    for (const swatch of document.querySelectorAll("svg[data-letter]")) {
      const path = new Path2D(swatch.querySelector("path").getAttribute("d"));
      shapes[swatch.dataset.letter] = { path, colour: getComputedStyle(swatch).color };
    }
    return shapes;
  }

  async function drawFleet(target) {
    const status = document.getElementById("map-status");
    const hovered = document.getElementById("map-host");
    const choice = document.getElementById("colour");
    const map = { pieces: [], count: 0, owners: [], zoom: 1, say: (text) => { hovered.textContent = text; } };
    stepThroughHosts(target, map);
    let fleet;
    const draw = () => {
      target.replaceChildren();
      const shapes = shapesOfLegend();
      const colourOf = colouring(choice.value, shapes, fleet.owners || []);
      Object.assign(map, { pieces: [], count: 0, owners: fleet.owners || [], colourOf });
      for (const cluster of fleet.clusters) drawCluster(target, cluster, shapes, map);
      if (map.at >= map.count) map.at = undefined;
      map.place();
    };
    const load = async () => {
      const by = choice.value;
      const source = new URL(target.dataset.source, window.location.href);
      if (by === "tenant" || by === "job") source.searchParams.set("by", by);
      const answer = await fetch(source);
      if (!answer.ok) throw new Error("no map");
      const received = await answer.json();
      // Another one was chosen in the meantime.
      if (by !== choice.value) return;
      fleet = received;
      const cut = fleet.isCut ? " There are more, of the hosts that come last by name: the map draws no more than these." : "";
      status.textContent = fleet.devices + " devices, as of log index " + fleet.logIndex +
        ". Each row of shapes is a host. Arrow keys step from host to host, and Enter opens one. + and - zoom, and " +
        "Shift with an arrow key or a drag moves what is shown." + cut;
      draw();
    };
    const chosen = new URLSearchParams(window.location.hash.slice(1)).get("colour");
    choice.value = COLOURS.includes(chosen) ? chosen : "state";
    document.getElementById("map-colours").hidden = false;
    choice.addEventListener("change", () => {
      window.history.replaceState(null, "", "#colour=" + choice.value);
      load().catch(() => { status.textContent = "The map cannot be had now; the table has the same by block."; });
    });
    await load();
    zoomAndDrag(target, map, draw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    let width = target.clientWidth;
    let later;
    window.addEventListener("resize", () => {
      // Phones send this while they scroll, with the width as it was.
      if (target.clientWidth === width) return;
      width = target.clientWidth;
      clearTimeout(later);
      later = setTimeout(draw, 200);
    });
  }

  // Only what scrolls is a stop for the keyboard.
  function stopAtWhatScrolls() {
    const tables = document.querySelectorAll(".scroll");
    const look = () => {
      for (const table of tables) {
        if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
        else if (table !== document.activeElement) table.removeAttribute("tabindex");
      }
    };
    look();
    window.addEventListener("resize", look);
  }

  stopAtWhatScrolls();
  const live = document.getElementById("live");
  if (live) followEvents(live);
  const output = document.getElementById("worker-output");
  if (output && window.EventSource) followOutput(output);
  const map = document.getElementById("fleet-map");
  if (map) {
    drawFleet(map).catch(() => {
      document.getElementById("map-status").textContent = "The map cannot be had now; the table has the same by block.";
    });
  }
})();
