// npm install openai; OPENAI_BASE_URL=http://127.0.0.1:7071/v1 OPENAI_API_KEY=cgk_... node chat.mjs
import OpenAI from 'openai'

const client = new OpenAI() // the base URL and the key of the environment
const stream = await client.chat.completions.create({
  model: process.env.MODEL ?? 'cay/scripted',
  messages: [{ role: 'user', content: 'Which islands are cays?' }],
  stream: true,
})
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? '')
console.log()
