// Opens every page of a cluster in Chromium, wide and narrow, light and dark, looks for violations with axe, walks through
// each with the keyboard alone, and takes the pictures of the guide. Told how many jobs the cluster has, it measures instead how
// soon pages are painted and how smoothly a map of 100,000 devices moves. Run by `.ci/browser`; the environment says with what:
//   MUSTER_PAGES      the address of a replica's pages
//   MUSTER_PATHS      paths to open, with spaces between them
//   MUSTER_CHROMIUM   the browser
//   MUSTER_MODULES    the directory in which puppeteer-core and axe-core are installed
//   MUSTER_JOBS       how many jobs the cluster has; with it there are measurements and nothing else
//   MUSTER_PICTURES   where the pictures go; none are taken without it
import { readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const { MUSTER_PAGES: base, MUSTER_PATHS, MUSTER_CHROMIUM, MUSTER_MODULES, MUSTER_JOBS, MUSTER_PICTURES } = process.env;
const modules = createRequire(join(MUSTER_MODULES, "package.json"));
const { default: puppeteer } = await import(modules.resolve("puppeteer-core"));
const axe = readFileSync(modules.resolve("axe-core/axe.min.js"), "utf8");
const paths = MUSTER_PATHS.split(" ");

const WIDTHS = [1280, 360];
const SCHEMES = ["light", "dark"];
const PICTURE_BYTES_MAX = 150_000;
const STOPS_MAX = 400;
const LOADS = 5;
const FIRST_PAINT_MS_MAX = 200;
// The map that is panned: devices, those of a host, hosts of a block, and blocks of a cluster.
const MAP_DEVICES = 100_000;
const HOST_DEVICES = 8;
const BLOCK_HOSTS = 125;
const CLUSTER_BLOCKS = 20;
const PAN_MS = 3_000;
const FRAMES_PER_S_MIN = 30;

const found = [];
const report = (where, what) => {
  found.push(`${where}: ${what}`);
  console.log(`${where}: ${what}`);
};

async function open(page, path, width, scheme) {
  await page.setViewport({ width, height: 800 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  const answer = await page.goto(base + path, { waitUntil: "load" });
  if (answer.status() !== 200) report(path, `answered with ${answer.status()}`);
  // The map is drawn and the list is live, or they never will be.
  await page.waitForFunction(
    () => !["The map needs", "Load the page"].some((text) =>
      document.querySelector("[role=status]")?.textContent.startsWith(text)),
    { timeout: 10_000 },
  ).catch(() => report(path, "its script does nothing"));
}

async function look(page, where) {
  const scrolls = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (scrolls > 0) report(where, `the page is ${scrolls} px wider than the window`);
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const { id, help, nodes } of violations) {
    report(where, `${id}: ${help}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
  }
}

// Every stop of the keyboard, once around: what can be used is reached and shows that it is.
async function walk(page, where) {
  const wanted = await page.evaluate(() => {
    const all = document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, [tabindex='0']");
    // What a page does not show yet is no stop: an output that nobody follows, rows of a closed list.
    const usable = [...all].filter((element) => element.checkVisibility());
    usable.forEach((element, number) => { element.dataset.stop = String(number); });
    return usable.length;
  });
  const reached = new Set();
  for (let step = 0; step < Math.min(STOPS_MAX, wanted + 5); step += 1) {
    await page.keyboard.press("Tab");
    const stop = await page.evaluate(() => {
      const at = document.activeElement;
      const style = at && getComputedStyle(at);
      return { number: at?.dataset?.stop, isShown: Boolean(style) && style.outlineStyle !== "none", tag: at?.outerHTML.slice(0, 120) };
    });
    if (stop.number === undefined) continue;
    if (reached.size === 0 && !stop.tag.includes("#main")) report(where, "the first stop is not the link to the content");
    if (!stop.isShown) report(where, `nothing shows that the keyboard is at ${stop.tag}`);
    reached.add(stop.number);
  }
  if (reached.size < Math.min(wanted, STOPS_MAX - 5)) report(where, `${wanted - reached.size} of ${wanted} cannot be reached by keyboard`);
}

async function pause(page) {
  await open(page, "/events", 1280, "light");
  await page.focus("#pause");
  await page.keyboard.press("Space");
  const text = await page.evaluate(() => document.getElementById("live").textContent);
  const pressed = await page.evaluate(() => document.getElementById("pause").getAttribute("aria-pressed"));
  if (pressed !== "true" || !text.startsWith("Paused")) report("/events", `it does not pause: ${text}`);
}

// From the request until the browser paints something, the median of several loads. `muster-bench pages` measures the answers
// behind it alone.
async function firstPaint(page, path) {
  const times = [];
  for (let load = 0; load < LOADS; load += 1) {
    await open(page, path, 1280, "light");
    await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0, { timeout: 5_000 })
      .catch(() => {});
    times.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? Infinity));
  }
  const median = times.sort((a, b) => a - b)[Math.floor(LOADS / 2)];
  console.log(`${path}: first paint ${median.toFixed(0)} ms with ${MUSTER_JOBS} jobs, at most ${FIRST_PAINT_MS_MAX}`);
  if (!(median <= FIRST_PAINT_MS_MAX)) report(path, `it is first painted after ${median} ms`);
}

// A fleet as `/fleet/map` sends it, with every state of a device in it.
function largeFleet() {
  const letters = "fpbsoucl";
  const clusters = [];
  const hosts = MAP_DEVICES / HOST_DEVICES;
  for (let host = 0; host < hosts; host += 1) {
    const block = Math.floor(host / BLOCK_HOSTS);
    if (host % (BLOCK_HOSTS * CLUSTER_BLOCKS) === 0) {
      const number = clusters.length;
      clusters.push({ region: `r${number % 3}`, cluster: `c${number}`, blocks: [] });
    }
    const { blocks } = clusters[clusters.length - 1];
    if (host % BLOCK_HOSTS === 0) blocks.push({ block: `b${block}`, hosts: [] });
    const devices = Array.from({ length: HOST_DEVICES }, (_, device) => letters[(host + device) % letters.length]).join("");
    blocks[blocks.length - 1].hosts.push([`host-${host}`, devices]);
  }
  return { logIndex: 1, devices: MAP_DEVICES, isCut: false, clusters };
}

// How many frames a second there are while `step` moves the map in each of them, and the longest time between two.
function framesWhile(page, step) {
  return page.evaluate((step, length) => new Promise((resolve) => {
    const map = document.getElementById("fleet-map");
    const moves = {
      scroll: (frame) => window.scrollBy(0, Math.floor(frame / 60) % 2 === 0 ? 40 : -40),
      keys: (frame) => {
        const key = ["ArrowDown", "ArrowRight"][frame % 2];
        map.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      },
    };
    let [begun, before, frames, longest] = [undefined, undefined, 0, 0];
    const next = (now) => {
      begun ??= now;
      longest = Math.max(longest, now - (before ?? now));
      before = now;
      if (now - begun >= length) return resolve({ perSecond: (frames * 1000) / (now - begun), longest });
      frames += 1;
      moves[step](frames);
      requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
  }), step, PAN_MS);
}

// Panning is scrolling, or stepping from host to host with the keyboard.
async function pan(browser) {
  const page = await browser.newPage();
  const fleet = JSON.stringify(largeFleet());
  await page.setRequestInterception(true);
  page.on("request", (request) => {
    if (new URL(request.url()).pathname !== "/fleet/map") return request.continue();
    return request.respond({ status: 200, contentType: "application/json", body: fleet });
  });
  page.on("pageerror", (error) => report(page.url(), String(error)));
  // A tab in the background has no frames.
  await page.bringToFront();
  await open(page, "/fleet", 1280, "light");
  await page.waitForFunction((devices) => document.getElementById("map-status").textContent.startsWith(`${devices} devices`),
    { timeout: 30_000 }, MAP_DEVICES);
  for (const step of ["scroll", "keys"]) {
    await page.evaluate(() => window.scrollTo(0, document.getElementById("fleet-map").offsetTop));
    const { perSecond, longest } = await framesWhile(page, step);
    console.log(`/fleet: ${MAP_DEVICES} devices, ${step}: ${perSecond.toFixed(1)} frames/s, at least ${FRAMES_PER_S_MIN}; ` +
      `the longest took ${longest.toFixed(0)} ms`);
    if (!(perSecond >= FRAMES_PER_S_MIN)) report("/fleet", `${perSecond.toFixed(1)} frames/s with ${MAP_DEVICES} devices, ${step}`);
  }
  await page.close();
}

// The keyboard steps to the second host of the map and opens it.
async function stepThroughMap(page) {
  await open(page, "/fleet", 1280, "light");
  await page.waitForFunction(() => document.querySelector("#fleet-map canvas"), { timeout: 10_000 });
  await page.focus("#fleet-map");
  const named = () => page.evaluate(() => document.getElementById("map-host").textContent);
  await page.keyboard.press("ArrowRight");
  const first = await named();
  await page.keyboard.press("ArrowRight");
  const second = await named();
  if (!first || !second || first === second) report("/fleet", `arrow keys lead from "${first}" to "${second}"`);
  await Promise.all([page.waitForNavigation({ waitUntil: "load" }), page.keyboard.press("Enter")]);
  const opened = decodeURIComponent(new URL(page.url()).pathname);
  if (opened !== `/nodes/${second.split("/").pop()}`) report("/fleet", `Enter at "${second}" opens ${opened}`);
}

// The map is drawn with each of its colours.
async function recolour(page) {
  await open(page, "/fleet", 1280, "light");
  for (const colour of ["health", "tenant", "job", "state"]) {
    await page.select("#colour", colour);
    await page.waitForNetworkIdle({ idleTime: 200 });
    const { text, hash } = await page.evaluate(() =>
      ({ text: document.getElementById("map-status").textContent, hash: window.location.hash }));
    if (!/^\d+ devices/.test(text) || hash !== `#colour=${colour}`) report("/fleet", `with the colours of ${colour}: ${text} ${hash}`);
  }
}

async function picture(page, name, path, width, scheme) {
  await open(page, path, width, scheme);
  const file = join(MUSTER_PICTURES, `${name}.png`);
  await page.screenshot({ path: file, clip: { x: 0, y: 0, width, height: 760 } });
  const { size } = statSync(file);
  if (size > PICTURE_BYTES_MAX) report(file, `${size} bytes`);
}

async function measure(browser, page) {
  for (const path of paths) await firstPaint(page, path);
  await pan(browser);
}

async function checkAll(page) {
  for (const path of paths) {
    for (const width of WIDTHS) {
      for (const scheme of SCHEMES) {
        await open(page, path, width, scheme);
        await look(page, `${path} at ${width} px, ${scheme}`);
      }
    }
    await open(page, path, 1280, "light");
    await walk(page, `${path} by keyboard`);
  }
  await pause(page);
  await stepThroughMap(page);
  await recolour(page);
  if (MUSTER_PICTURES) {
    const job = paths.find((path) => path.startsWith("/jobs/"));
    await picture(page, "overview", "/", 1280, "light");
    await picture(page, "job", job, 1280, "light");
    await picture(page, "fleet", "/fleet", 1280, "dark");
    await picture(page, "queues", "/queues", 1280, "light");
    await picture(page, "timeline", "/timeline", 1280, "light");
    await picture(page, "plan", "/plan?accelerators=h100%3A4&workers=2", 1280, "light");
    await picture(page, "narrow", "/jobs", 360, "light");
  }
}

const browser = await puppeteer.launch({
  executablePath: MUSTER_CHROMIUM,
  // A container has no name spaces for the browser's; it sees pages of this machine alone.
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-device-scale-factor=1"],
});
try {
  const page = await browser.newPage();
  // A page that is shown again is asked for again, whole.
  await page.setCacheEnabled(false);
  page.on("console", (message) => { if (message.type() === "error") report(page.url(), message.text()); });
  page.on("pageerror", (error) => report(page.url(), String(error)));
  if (MUSTER_JOBS) await measure(browser, page);
  else await checkAll(page);
} finally {
  await browser.close();
}
console.log(`${paths.length} pages, ${found.length} findings`);
process.exit(found.length === 0 ? 0 : 1);
