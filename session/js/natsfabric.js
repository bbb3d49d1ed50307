// natsfabric.js: a client of natsfabric sessions for browsers and other programs with a WebSocket. No dependencies.
// The protocol, and every text that an error may have, stands in docs/sessions.md.
//
//   import { connect } from "/natsfabric.js";
//   const client = connect(["wss://a.example/session", "wss://b.example/session"], { credentials: () => "token" });
//   const counter = await client.bind("actor/counter-1");
//   counter.onpush = (push) => show(push.text());
//   const reply = await counter.request("add");        // reply.text(), reply.json(), reply.data (Uint8Array)
//
// Every call ends: with a reply, or with a FabricError whose kind says what went wrong and whose acceptance says what is
// known: "NotAccepted" (it did not and will not run), "Accepted", "Unknown" (it may have run). Nothing is sent again.
// A lost connection is made anew, at the next address; what was bound is bound again, to the same incarnation.
//
// Events of a client (client.on<name>): connected {node, session, welcome}, disconnected {error}, refused {error},
// goaway {node}, bound {binding}, moved {binding}, ended {binding, why, error}.

const encoder = new TextEncoder();
const decoder = new TextDecoder();
const bytesOf = (data) =>
  data == null ? new Uint8Array(0) : typeof data === "string" ? encoder.encode(data) : data instanceof Uint8Array ? data : new Uint8Array(data);

/** What went wrong, and what is known of acceptance. */
export class FabricError extends Error {
  constructor(kind, acceptance, text, remote = false) {
    super(`${kind} (${acceptance}): ${text}`);
    this.name = "FabricError";
    Object.assign(this, { kind, acceptance, text, remote });
  }
}

/** The payload of a reply, a push or a welcome. */
class Payload {
  constructor(data) { this.data = data; }
  text() { return decoder.decode(this.data); }
  json() { return JSON.parse(this.text()); }
}

const frame = (header, data) => {
  const head = encoder.encode(JSON.stringify(header) + "\n");
  const body = bytesOf(data);
  const out = new Uint8Array(head.length + body.length);
  out.set(head);
  out.set(body, head.length);
  return out;
};

const errNoSession = () => new FabricError("Unavailable", "NotAccepted", "there is no session: the client is connecting");

// promise, or the rejection with late() once the time is over.
const within = (promise, ms, late) => {
  let timer;
  const over = new Promise((_, reject) => { timer = setTimeout(() => reject(late()), ms); });
  return Promise.race([promise, over]).finally(() => clearTimeout(timer));
};

const parse = (data) => {
  const bytes = typeof data === "string" ? encoder.encode(data) : new Uint8Array(data);
  const end = bytes.indexOf(10);
  return [JSON.parse(decoder.decode(bytes.subarray(0, end))), bytes.subarray(end + 1)];
};

/** Opens a session at one of the addresses, and keeps one open. */
export function connect(urls, options = {}) { return new Client([].concat(urls), options); }

class Client {
  #urls; #options; #session = null; #at = -1; #tries = 0; #timer = null; #closed = null; #began = 0; #waiters = new Set();
  bindings = new Set();

  constructor(urls, options) {
    this.#urls = urls;
    this.#options = { timeout: 5000, handshake: 10000, minBackoff: 100, maxBackoff: 10000, name: "", credentials: () => "", ...options };
    this.#open();
  }

  /** The present session, or null. */
  get session() { return this.#session?.open ? this.#session : null; }

  /** Resolves when a session is open; rejects once the client is closed, and after so many milliseconds, if they are given. */
  ready(timeout) {
    if (this.#closed) return Promise.reject(this.#closed);
    if (this.session) return Promise.resolve(this);
    return new Promise((resolve, reject) => {
      const w = { resolve, reject };
      if (timeout) w.timer = setTimeout(() => this.#waiters.delete(w) && reject(errNoSession()), timeout);
      this.#waiters.add(w);
    });
  }

  #wake(f) {
    for (const w of this.#waiters) {
      clearTimeout(w.timer);
      f(w);
    }
    this.#waiters.clear();
  }

  /** Binds to an Actor: "actor/<escaped id>@<generation>", or without the generation to the present incarnation. */
  async bind(ref) {
    await this.ready(this._timeout);
    const session = this.session;
    if (!session) throw errNoSession(); // it came and went
    const binding = new Binding(this, ref);
    await binding._bind(session);
    return binding;
  }

  /** Ends the session and the client. */
  close() {
    if (this.#closed) return;
    this.#closed = new FabricError("ShuttingDown", "NotAccepted", "the client is closed");
    clearTimeout(this.#timer);
    this.#wake((w) => w.reject(this.#closed));
    this.#session?.leave(this.#closed);
  }

  get _timeout() { return this.#options.timeout; }

  _event(name, detail) {
    try { this["on" + name]?.(detail); } catch (e) { queueMicrotask(() => { throw e; }); }
  }

  async #open() {
    this.#at = (this.#at + 1) % this.#urls.length;
    let credentials;
    try {
      credentials = await within(Promise.resolve(this.#options.credentials()), this.#options.handshake, () => "they did not come in time");
    } catch (e) {
      return this._over(null, new FabricError("NotConfigured", "NotAccepted", `there are no credentials: ${e}`));
    }
    if (this.#closed) return;
    try {
      this.#session = new Session(this, this.#urls[this.#at], this.#options, credentials);
    } catch (e) { // an address that is none
      this._over(null, new FabricError("InvalidOperation", "NotAccepted", `no connection: ${e}`));
    }
  }

  _opened(session) {
    this.#began = Date.now();
    this._event("connected", { node: session.node, session: session.number, welcome: session.welcome });
    this.#wake((w) => w.resolve(this));
    for (const b of this.bindings) this.#rebind(b, session, 0);
  }

  _over(session, error) {
    if (session?.open) this._event("disconnected", { error });
    else this._event("refused", { error });
    this.#session = null;
    if (this.#closed) return;
    if (session?.open && Date.now() - this.#began > this.#options.maxBackoff) this.#tries = 0; // it has lasted
    const most = Math.min(this.#options.maxBackoff, this.#options.minBackoff * 2 ** Math.min(this.#tries++, 20));
    this.#timer = setTimeout(() => this.#open(), session?.away ? 0 : most * (1 - Math.random() / 2));
  }

  async #rebind(binding, session, tries) {
    try {
      await binding._bind(session);
      if (binding.over) session.request({ t: "unbind", b: binding.token }).catch(() => {});
      else this._event("bound", { binding });
    } catch (error) {
      if (this.#session !== session || !session.open || session.away || binding.over) return;
      if (["Unavailable", "DeadlineExceeded", "ShuttingDown", "CapacityExceeded"].includes(error.kind)) {
        setTimeout(() => this.#session === session && this.#rebind(binding, session, tries + 1), Math.min(100 * 2 ** tries, 5000));
      } else binding._end("lost", error);
    }
  }
}

/** One session, on one connection. */
class Session {
  open = false; away = false; node = ""; number = 0; welcome = null; bindings = new Map();
  #client; #socket; #waiting = new Map(); #next = 0; #silence; #done = false; #limits = { max: 65536, inflight: 64 };

  constructor(client, url, options, credentials) {
    this.#client = client;
    this.#watch(options.handshake, "the node did not answer the hello");
    this.#socket = new WebSocket(url);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = () => this.#send({ t: "hello", v: 1, client: options.name }, credentials);
    this.#socket.onmessage = (e) => this.#take(e.data);
    this.#socket.onclose = (e) => this.#end(new FabricError("Unavailable", "Unknown", `the connection was lost (${e.code} ${e.reason})`));
  }

  #send(header, data) { this.#socket.send(frame(header, data)); }

  #watch(ms, text) {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#end(new FabricError("Unavailable", "Unknown", text)), ms);
  }

  leave(error) {
    if (this.#socket.readyState === 1) this.#send({ t: "bye" });
    this.#end(error);
  }

  #end(error) {
    if (this.#done) return;
    this.#done = true;
    clearTimeout(this.#silence);
    this.#socket.onmessage = this.#socket.onclose = this.#socket.onopen = null;
    this.#socket.onerror = () => {};
    this.#socket.close();
    for (const b of this.bindings.values()) if (b.session === this) b.session = null;
    for (const [, w] of this.#waiting) w.reject(new FabricError(error.kind, "Unknown", `the connection was lost before the answer came: ${error.text}`));
    this.#waiting.clear();
    this.#client._over(this, error);
    this.open = false;
  }

  // taken, if given, gets the answer's header before the next frame is read.
  request(header, data, timeout = this.#client._timeout, taken = null) {
    const refuse = (kind, text) => Promise.reject(new FabricError(kind, "NotAccepted", text));
    const body = bytesOf(data);
    if (!this.open || this.#done) return refuse("Unavailable", "the session is over: the client is connecting");
    if (this.away) return refuse("Unavailable", "the node goes away: the client is about to connect elsewhere");
    if (body.length > this.#limits.max) return refuse("CapacityExceeded", "the message is larger than the node allows");
    if (this.#waiting.size >= this.#limits.inflight) return refuse("CapacityExceeded", "as many requests wait for an answer as the node allows");
    const id = ++this.#next;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#answer(id, (w) => w.reject(new FabricError("DeadlineExceeded", "Unknown", "no answer came"))), timeout);
      this.#waiting.set(id, { timer, resolve, reject, taken });
      this.#send({ ...header, id, ms: Math.max(1, Math.round(timeout)) }, body);
    });
  }

  #answer(id, f) {
    const w = this.#waiting.get(id);
    if (!w) return; // late: it changes nothing
    this.#waiting.delete(id);
    clearTimeout(w.timer);
    f(w);
    if (this.away && this.#waiting.size === 0) this.leave(new FabricError("Unavailable", "NotAccepted", "the node goes away"));
  }

  #take(message) {
    let h, data;
    try { [h, data] = parse(message); } catch (e) { return this.#end(new FabricError("ProtocolError", "Unknown", `the node sent what is no frame: ${e}`)); }
    if (this.open) this.#watch(this.#limits.heartbeat * 2.5 + 500, "nothing came from the node for two and a half heartbeats");
    const binding = this.bindings.get(h.b);
    switch (h.t) {
      case "welcome":
        Object.assign(this, { open: true, node: h.rid, number: h.n, welcome: new Payload(data) });
        this.#limits = h;
        this.#watch(h.heartbeat * 2.5 + 500, "nothing came from the node for two and a half heartbeats");
        return this.#client._opened(this);
      case "refused": return this.#end(new FabricError(h.kind, "NotAccepted", h.text, true));
      case "bye": return this.#end(new FabricError(h.kind, "Unknown", h.text, true));
      case "ping": return this.#send({ t: "pong" });
      case "ok":
        if (h.ref && !this.#waiting.has(h.id) && !binding) this.request({ t: "unbind", b: h.b }).catch(() => {}); // a bind that was given up
        return this.#answer(h.id, (w) => { w.taken?.(h); w.resolve(Object.assign(new Payload(data), { header: h })); });
      case "err": return this.#answer(h.id, (w) => w.reject(new FabricError(h.kind, h.acc, h.text ?? "", h.remote ?? false)));
      case "push": return binding?._push(Object.assign(new Payload(data), { seq: h.s, owner: h.g }));
      case "moved":
        if (binding) this.#client._event("moved", { binding: Object.assign(binding, { node: h.rid, owner: h.g }) });
        return;
      case "ended":
        this.bindings.delete(h.b);
        return binding?._end(h.why, new FabricError("NotFound", "NotAccepted", h.text ?? h.why, true));
      case "goaway":
        this.away = true;
        this.#client._event("goaway", { node: this.node });
        if (this.#waiting.size === 0) return this.leave(new FabricError("Unavailable", "NotAccepted", "the node goes away"));
        setTimeout(() => this.#done || this.leave(new FabricError("Unavailable", "Unknown", "the node goes away")), h.ms / 2);
    }
  }
}

/** The client's binding to one Actor. It lives through sessions. */
class Binding {
  session = null; token = ""; node = ""; owner = 0; generation = 0; over = null;
  #client; #onpush = null; #early = [];

  constructor(client, ref) {
    this.#client = client;
    this.ref = ref;
  }

  async _bind(session) {
    await session.request({ t: "bind", ref: this.ref }, null, undefined, (h) => {
      Object.assign(this, { session, token: h.b, ref: h.ref, node: h.rid, owner: h.g, generation: h.n });
      session.bindings.set(h.b, this);
      if (!this.over) this.#client.bindings.add(this); // before the session may end: the next one binds it again
    });
  }

  /** Called with each push. What comes before it is set waits for it, up to 256 pushes. */
  get onpush() { return this.#onpush; }
  set onpush(f) {
    this.#onpush = f;
    if (f) this.#early.splice(0).forEach((push) => this._push(push));
  }

  _push(push) {
    if (!this.#onpush) return void (this.#early.length < 256 && this.#early.push(push));
    try { this.#onpush(push); } catch (e) { queueMicrotask(() => { throw e; }); }
  }

  _end(why, error) {
    Object.assign(this, { session: null, over: error });
    this.#client.bindings.delete(this);
    this.#client._event("ended", { binding: this, why, error });
  }

  #call(type, data, timeout, extra = {}) {
    if (this.over) return Promise.reject(new FabricError("InvalidOperation", "NotAccepted", `the binding is over: ${this.over.text}`));
    if (!this.session) return Promise.reject(new FabricError("Unavailable", "NotAccepted", "there is no session, or the Actor is not bound in it yet"));
    return this.session.request({ t: type, b: this.token, ...extra }, data, timeout);
  }

  /** Sends data and resolves to the Actor's reply. early: a failure after the Actor took it says Accepted. */
  request(data, { timeout, early } = {}) { return this.#call("request", data, timeout, early ? { early: true } : {}); }

  /** Sends data and resolves once the Actor's mailbox has it. */
  async send(data, { timeout } = {}) { await this.#call("send", data, timeout); }

  /** Ends the binding for good. */
  async unbind() {
    const done = this.#call("unbind");
    this.session?.bindings.delete(this.token);
    this.over ??= new FabricError("InvalidOperation", "NotAccepted", "it was unbound");
    this.#client.bindings.delete(this);
    await done;
  }
}
