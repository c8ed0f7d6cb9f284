// A model's text as a reader wants it; code blocks get a button that copies them.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { toHtml } from "../lib/markdown";

export function Markdown({ text }: { text: string }) {
  const html = useMemo(() => toHtml(text), [text]);
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => {
    for (const block of root.current?.querySelectorAll("pre") ?? []) addCopyButton(block);
  }, [html]);
  return <div class="markdown" ref={root} dangerouslySetInnerHTML={{ __html: html }} />;
}

function addCopyButton(block: HTMLElement): void {
  if (block.parentElement?.classList.contains("code")) return;
  const frame = document.createElement("div");
  frame.className = "code";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", () => void copy(block.innerText, button));
  block.replaceWith(frame);
  frame.append(button, block);
}

async function copy(text: string, button: HTMLButtonElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text.replace(/\n$/, ""));
    button.textContent = "Copied";
  } catch {
    button.textContent = "Press Ctrl-C";
    const pre = button.parentElement?.querySelector("pre");
    if (pre) getSelection()?.selectAllChildren(pre);
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
