// Plays the stories of tests/it/chat_clients.rs with the official client for Node, and prints what it saw as one JSON object.
//
//     node play.mjs http://127.0.0.1:7070 KEY DIRECTORY_OF_THE_CLIENT

import { createRequire } from "node:module";

const [url, apiKey, directory] = process.argv.slice(2);
const OpenAI = createRequire(`${directory}/`)("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey });

const ask = (prompt, more = {}) =>
  client.chat.completions.create({ model: "demo", messages: [{ role: "user", content: prompt }], ...more });

const told = (answer) => ({
  content: answer.choices[0].message.content,
  reason: answer.choices[0].finish_reason,
  usage: answer.usage && answer.usage.total_tokens,
  approvals: answer.ostler.approvals.length,
});

async function toldStream(chunks) {
  const seen = { content: "", reason: "", usage: null, approvals: 0 };
  const reasons = [];
  for await (const chunk of chunks) {
    seen.usage = chunk.usage?.total_tokens ?? seen.usage;
    for (const choice of chunk.choices) {
      seen.content += choice.delta.content ?? "";
      if (choice.finish_reason) {
        reasons.push(choice.finish_reason);
        seen.approvals = chunk.ostler.approvals.length;
      }
    }
  }
  return { ...seen, reason: reasons.join(" ") };
}

async function raised(call) {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    const { code, param, status } = error;
    return { class: error.constructor.name, code, param: param ?? null, status: status ?? null };
  }
  return null;
}

const models = [];
for await (const model of await client.models.list()) models.push(model.id);
const seen = { models };
seen.model = (await client.models.retrieve("demo")).id;
seen.no_model = await raised(() => client.models.retrieve("demo/none"));
seen.completion = told(await ask("/say hello\n/usage 10 5"));
const withUsage = { stream: true, stream_options: { include_usage: true } };
seen.streamed = await toldStream(await ask("/say hello again\n/usage 10 5", withUsage));

const first = await ask("/remember blue");
seen.conversation = told(await ask("/recall", { metadata: { session_id: first.ostler.session_id } }));

const paused = await ask("/say before\n/ask shell {}\n/say after");
const { session_id, turn_id, approvals } = paused.ostler;
seen.paused = told(paused);
seen.busy = await raised(() => ask("/say x", { metadata: { session_id } }));
const metadata = { session_id, turn_id };
seen.paused_stream = await toldStream(await ask("go on", { metadata, stream: true }));
await client.post(`/approvals/${approvals[0]}/decision`, { body: { decision: "approve" } });
seen.collected = told(await ask("go on", { metadata }));

seen.failed = await raised(() => ask("/fail tool_broke The tool broke"));
seen.failed_stream = await raised(async () =>
  toldStream(await ask("/say x\n/fail tool_broke words", { stream: true })),
);
seen.refused = await raised(() => ask("/say x", { n: 2 }));
seen.absent = await raised(() => ask("/say x", { metadata: { session_id: "ses_none" } }));
const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "nobody" });
seen.stranger = await raised(() => stranger.models.list());
console.log(JSON.stringify(seen));
