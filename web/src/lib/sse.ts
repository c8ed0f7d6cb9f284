// Server-sent events out of a response's bytes. EventSource cannot POST, so this is read by hand.

export interface ServerEvent {
  name: string; // "message" where the server names none
  data: string;
}

/** Takes text as it arrives, cut anywhere, and gives the events that are complete. */
export class EventParser {
  private rest = "";

  feed(text: string): ServerEvent[] {
    this.rest += text;
    const events: ServerEvent[] = [];
    for (;;) {
      const end = /\r?\n\r?\n/.exec(this.rest);
      if (end === null) return events;
      const event = parseBlock(this.rest.slice(0, end.index));
      this.rest = this.rest.slice(end.index + end[0].length);
      if (event !== null) events.push(event);
    }
  }
}

function parseBlock(block: string): ServerEvent | null {
  let name = "message";
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon === 0) continue; // a comment: the server's ping
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
  }
  return data.length > 0 ? { name, data: data.join("\n") } : null;
}

/** The events of a response until it ends. */
export async function* eventsOf(response: Response): AsyncGenerator<ServerEvent> {
  const body = response.body;
  if (body === null) return;
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    await reader.cancel().catch(() => undefined); // left early: tells the server to stop
  }
}
