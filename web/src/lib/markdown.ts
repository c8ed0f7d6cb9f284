// A model's Markdown as HTML that can do nothing: no script, no style, no picture from elsewhere, no form.

import DOMPurify from "dompurify";
import { Marked } from "marked";

const ALLOWED_TAGS = [
  "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "li", "ol", "p",
  "pre", "s", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
];

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

const escaped = (text: string): string => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// Tags that a model writes are shown as it wrote them; the sanitizer behind this is the second wall, not the first.
const markdown = new Marked({ gfm: true, breaks: true, renderer: { html: ({ text }) => escaped(text) } });

/** Untrusted Markdown to harmless HTML. */
export function toHtml(text: string): string {
  return DOMPurify.sanitize(markdown.parse(text, { async: false }), {
    ALLOWED_TAGS,
    ALLOWED_ATTR: ["href", "class", "start"],
    ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  });
}
