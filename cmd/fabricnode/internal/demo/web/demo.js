// The page of the web demo: one session, bound to one Actor, that asks 20 times a second and draws what comes.
import { connect } from "./natsfabric.js";

const pause = 50; // ms between two requests
const most = 40; // requests that wait for a reply; the node allows 64
const kept = 240; // replies that are drawn and listed
const $ = (id) => document.getElementById(id);
const show = (values) => { for (const [id, v] of Object.entries(values)) $(id).textContent = v; };
const colour = (node) => getComputedStyle(document.documentElement).getPropertyValue("--" + node) || "#888";

const status = await (await fetch("status")).json();
const boxes = {};
for (const node of status.nodes) {
  const box = document.createElement("div");
  box.style.setProperty("--colour", colour(node));
  box.innerHTML = '<b></b><span class="here">the Actor is here</span><br><button>Move it here</button>';
  box.querySelector("b").textContent = node;
  box.querySelector("button").onclick = () => move(node);
  $("nodes").append((boxes[node] = box));
}

const sender = "page-" + crypto.getRandomValues(new Uint32Array(2)).join("-");
const seen = { connections: 0, sent: 0, replied: 0, failed: 0, lost: 0, doubled: 0, moves: 0, owner: "", ownerGeneration: 0, last: 0, gapMax: 0 };
const bars = [];
let binding = null;
let waiting = 0; // requests without a reply
let target = ""; // of the move that is under way, until a reply comes from there

const client = connect(`ws://${location.host}/session`, { name: sender });
client.onconnected = ({ node, session }) => show({ connections: ++seen.connections, "session-node": node, session: `${node}, number ${session}` });
client.ondisconnected = ({ error }) => say(error.message);
show({ actor: status.actor });
binding = await client.bind(status.actor);
setInterval(ask, pause);
setInterval(async () => {
  const { load } = await (await fetch("status")).json();
  show({ "load-sent": load.sent, "load-replied": load.replied, "load-failed": load.not_accepted + load.accepted + load.unknown,
    "load-lost": load.lost, "load-doubled": load.doubled, "load-gap": load.gap_ms.toFixed(1) });
}, 500);

// ask sends one request. Requests of one session to one Actor run in their order, so none waits for the one before.
async function ask() {
  if (waiting >= most) return; // something stands still: the next tick comes
  waiting++;
  const number = seen.sent + 1;
  const sent = performance.now();
  show({ sent: (seen.sent = number) });
  try {
    took((await binding.request(JSON.stringify({ sender, number }), { timeout: 30000 })).json(), performance.now() - sent);
  } catch (e) {
    show({ failed: ++seen.failed });
    line(`${number} ${e.message}`);
  } finally {
    waiting--;
  }
}

// took takes one reply. ran is how many of this page's requests the Actor has run: one that was replied to is one of them.
function took(reply, ms) {
  const now = performance.now();
  const since = seen.last ? now - seen.last : 0;
  seen.last = now;
  seen.replied++;
  seen.lost = Math.max(seen.lost, seen.replied - reply.ran);
  seen.doubled = reply.late;
  if (reply.owner_generation !== seen.ownerGeneration) {
    if (seen.ownerGeneration) moved(reply, since);
    for (const [node, box] of Object.entries(boxes)) box.classList.toggle("owner", node === reply.node);
  }
  seen.owner = reply.node;
  if (target === reply.node) target = "";
  seen.ownerGeneration = reply.owner_generation;
  show({ replied: seen.replied, lost: seen.lost, doubled: seen.doubled, total: reply.total, owner: reply.node, generation: reply.generation,
    "owner-generation": reply.owner_generation });
  line(`${String(reply.number).padStart(6)}  ${reply.node}  owner generation ${reply.owner_generation}  ${ms.toFixed(1)} ms`);
  bars.push([since, reply.node]);
  if (bars.length > kept) bars.shift();
  draw();
}

function moved(reply, gap) {
  seen.gapMax = Math.max(seen.gapMax, gap);
  show({ moves: ++seen.moves, gap: gap.toFixed(1), "gap-max": seen.gapMax.toFixed(1) });
  const li = document.createElement("li");
  li.textContent = `${seen.owner} to ${reply.node}: ${gap.toFixed(1)} ms between the last reply there and the first one here`;
  $("move-list").prepend(li);
  if ($("move-list").childElementCount > kept) $("move-list").lastChild.remove();
}

function line(text) {
  const li = document.createElement("li");
  li.textContent = text;
  $("replies").prepend(li);
  if ($("replies").childElementCount > kept) $("replies").lastChild.remove();
}

function draw() {
  const canvas = $("times"), ctx = canvas.getContext("2d"), top = 200;
  const width = canvas.width / kept, scale = canvas.height / top;
  ctx.clearRect(0, 0, canvas.width, canvas.height);
  bars.forEach(([ms, node], i) => {
    ctx.fillStyle = colour(node);
    const height = Math.min(ms, top) * scale;
    ctx.fillRect(i * width, canvas.height - height, width - 1, height);
  });
  ctx.fillStyle = "#8888";
  ctx.fillRect(0, canvas.height - pause * scale, canvas.width, 1);
}

async function move(to) {
  say("");
  target = to;
  const response = await fetch("move/" + to, { method: "POST" });
  if (!response.ok) {
    target = "";
    const { error, text } = await response.json();
    say(`${text} (${error})`);
  }
}

const next = () => status.nodes[(status.nodes.indexOf(seen.owner) + 1) % status.nodes.length];
const say = (text) => show({ error: text });
$("next").onclick = () => move(next());
let auto = null;
$("auto").onchange = (e) => {
  clearInterval(auto);
  if (e.target.checked) auto = setInterval(() => target || move(next()), 1000);
};
