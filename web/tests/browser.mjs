// The page in a real browser: `node tests/browser.mjs [--screenshots FOLDER] [--url URL --question TEXT]`.
// Without --url, against the mock server, every behaviour; with it, one question to a real server.

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { startMock } from "./mock_server.mjs";

const { values } = parseArgs({
  options: {
    screenshots: { type: "string" },
    url: { type: "string" },
    question: { type: "string" },
    seconds: { type: "string", default: "5" }, // that the monitor is watched before its picture
  },
});
const BROWSERS = [process.env.STRATA_BROWSER, "/usr/bin/chromium", "/usr/bin/google-chrome"];
const executablePath = BROWSERS.find((path) => path && existsSync(path));
if (!executablePath) throw new Error("no browser: install Debian's chromium or name one in STRATA_BROWSER");

const profile = mkdtempSync(join(tmpdir(), "strata-page-"));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"],
  viewport: { width: 1120, height: 780 },
  permissions: ["clipboard-read", "clipboard-write"],
});

async function open(url) {
  const page = await browser.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && page.problems.push(message.text()));
  await page.goto(url);
  return page;
}

async function shoot(page, name) {
  if (values.screenshots) await page.screenshot({ path: join(values.screenshots, `${name}.png`) });
}

async function ask(page, text) {
  await page.getByLabel("Message").fill(text);
  await page.keyboard.press("Enter");
}

async function realServer() {
  const page = await open(values.url);
  await page.locator(".state.ready").waitFor({ timeout: 60_000 });
  await ask(page, values.question);
  await page.locator(".timings").waitFor({ timeout: 60_000 });
  console.log(await page.locator(".turn.assistant").last().innerText());
  await shoot(page, "chat");
  await page.getByRole("button", { name: "Monitor" }).click();
  await page.locator(".figures").waitFor();
  await page.waitForTimeout(1000 * Number(values.seconds));
  await shoot(page, "monitor");
  await page.getByRole("button", { name: "Connect" }).click();
  await page.getByText("Settings in use").waitFor();
  await shoot(page, "connect");
  assert.deepEqual(page.problems, []);
}

const checks = {
  async "a reply streams, its reasoning folds, and it says what it took"(url) {
    const page = await open(url);
    await ask(page, "What does harbour mean?");
    await page.locator(".timings").waitFor();
    assert.match(await page.locator(".timings").innerText(), /87 tokens at 43\.2\/s .* 192 tokens, 64 kept at 1,830\/s/);
    assert.equal(await page.locator(".reasoning p").isVisible(), false);
    await page.locator(".reasoning summary").click();
    assert.equal(await page.locator(".reasoning p").innerText(), "The user asks for a word.");
    await shoot(page, "chat");
    assert.deepEqual(page.problems, []);
  },
  async "what a model writes does nothing: no script, no picture, no scheme but the web's"(url) {
    const page = await open(url);
    await ask(page, "x");
    await page.locator(".timings").waitFor();
    assert.equal(await page.title(), "Strata");
    assert.equal(await page.locator(".markdown img, .markdown script").count(), 0);
    const links = await page.locator(".markdown a").evaluateAll((all) => all.map((a) => [a.getAttribute("href"), a.rel]));
    assert.deepEqual(links.filter(([href]) => href), [["https://example.org", "noopener noreferrer nofollow"]]);
    assert.deepEqual(page.problems, []);
  },
  async "a code block is copied"(url) {
    const page = await open(url);
    await ask(page, "x");
    await page.locator(".timings").waitFor();
    await page.getByRole("button", { name: "Copy" }).click();
    await page.getByText("Copied").waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "print('ship ahoy')");
  },
  async "a reply can be stopped, and the next question works"(url) {
    const page = await open(url);
    await ask(page, "slowly");
    await page.getByText("sheltered port").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText("Stopped.").waitFor();
    await ask(page, "again");
    await page.locator(".timings").waitFor();
    assert.deepEqual(page.problems, []);
  },
  async "a refusal shows the server's own sentence"(url) {
    const page = await open(url);
    await ask(page, "refuse");
    await page.getByText("the prompt has 9000 tokens and the context holds 8192").waitFor();
  },
  async "the monitor draws what the engine does"(url) {
    const page = await open(url);
    await page.getByRole("button", { name: "Monitor" }).click();
    await page.locator(".charts canvas").first().waitFor();
    await page.waitForTimeout(1500);
    assert.equal(await page.locator(".charts canvas").count(), 4);
    assert.equal(await page.locator("tr.decoding").count(), 1);
    assert.match(await page.locator("tr.reading").innerText(), /of 6,000/);
    await shoot(page, "monitor");
    await page.getByRole("button", { name: "Connect" }).click();
    await page.getByText("ANTHROPIC_BASE_URL").waitFor();
    await shoot(page, "connect");
    assert.deepEqual(page.problems, []);
  },
  async "a narrow window needs no sideways scrolling"(url) {
    const page = await open(url);
    await page.setViewportSize({ width: 390, height: 700 });
    for (const name of ["Chat", "Monitor", "Connect"]) {
      await page.getByRole("button", { name, exact: true }).click();
      await page.waitForTimeout(200);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `${name} is ${overflow} pixels too wide`);
    }
  },
};

async function keyIsAskedFor() {
  const server = await startMock({ key: "secret" });
  const page = await open(server.url);
  await page.getByLabel("This server asks for an API key").fill("secret");
  await page.getByRole("button", { name: "Use it" }).click();
  await page.locator(".state.ready").waitFor();
  server.close();
}

try {
  if (values.url) {
    await realServer();
  } else {
    const server = await startMock();
    for (const [name, check] of Object.entries(checks)) {
      await check(server.url);
      for (const page of browser.pages().slice(1)) await page.close();
      console.log(`ok  ${name}`);
    }
    server.close();
    await keyIsAskedFor();
    console.log("ok  a key is asked for where the server wants one");
  }
} finally {
  await browser.close();
  rmSync(profile, { recursive: true, force: true });
}
process.exit(0);
