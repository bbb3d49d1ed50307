// Drives natsfabric.js for js_test.go: commands come as lines, what happens goes out as lines.
import { connect } from "./natsfabric.mjs";
import { createInterface } from "node:readline";

const say = (...words) => console.log(words.join(" "));
const failed = (what, e) => say(what, "failed", e.kind ?? e, e.acceptance ?? "", e.remote ?? "", e.text ?? "");
const client = connect(process.argv.slice(2), { credentials: () => "ann", name: "node", timeout: Number(process.env.FABRIC_TIMEOUT ?? 30000), minBackoff: 50, maxBackoff: 500 });
client.onconnected = (e) => say("connected", e.node, e.welcome.text());
client.ondisconnected = (e) => say("disconnected", e.error.kind);
client.onrefused = (e) => say("refused", e.error.kind);
client.ongoaway = (e) => say("goaway", e.node);
client.onbound = (e) => say("bound", e.binding.generation);
client.onmoved = (e) => say("moved", e.binding.node, e.binding.owner);
client.onended = (e) => say("ended", e.why, e.error.kind);
let binding;

const commands = {
  async bind(ref) {
    binding = await client.bind(ref);
    await new Promise((resolve) => setTimeout(resolve, 50)); // what the Actor pushes at once waits
    binding.onpush = (p) => say("push", p.seq, p.owner, p.text());
    say("bind", binding.ref, binding.node, binding.generation);
  },
  async request(text) { say("reply", (await binding.request(text)).text()); },
  async bytes() { say("reply", Array.from((await binding.request(new Uint8Array([0, 10, 255]))).data)); },
  async short(text) { say("reply", (await binding.request(text, { timeout: 10_000 })).text()); },
  async send(text) { await binding.send(text); say("sent"); },
  async large() { await binding.send("x".repeat(70000)); say("sent"); },
  async close() { client.close(); say("closed"); },
  async unbind() { await binding.unbind(); say("unbound"); },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...rest] = line.split(" ");
  commands[name](rest.join(" ")).catch((e) => failed(name, e));
}
client.close();
