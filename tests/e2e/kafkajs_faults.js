// kafkajs against a cluster that is told to fail: node kafkajs_faults.js CONTROL_FILE
// Prints how often each fault met a request, and what is stored.
"use strict"

const fs = require("node:fs")
const http = require("node:http")
const { Kafka, Partitioners, logLevel } = require("kafkajs")

const control = JSON.parse(fs.readFileSync(process.argv[2]))

function call(method, given = {}) {
  const headers = { Authorization: `Bearer ${control.token}`, "Content-Type": "application/json" }
  return new Promise((resolve, reject) => {
    const request = http.request(`${control.url}/${method}`, { method: "POST", headers }, answer => {
      let text = ""
      answer.on("data", piece => (text += piece))
      answer.on("end", () =>
        answer.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(`${method}: ${text}`))
      )
    })
    request.on("error", reject)
    request.end(JSON.stringify(given))
  })
}

async function main() {
  const kafka = new Kafka({
    brokers: control.bootstrap_servers.split(","),
    retry: { initialRetryTime: 50, retries: 20 },
    logLevel: logLevel.NOTHING,
  })
  const topic = await call("create_topic", { name: "repeated", partitions: 1 })
  const producer = kafka.producer({
    createPartitioner: Partitioners.DefaultPartitioner,
    idempotent: true,
    maxInFlightRequests: 1,
  })
  await producer.connect()
  const met = {}
  const send = async (name, how, value) => {
    const { fault } = await call("fault", { api: "Produce", topic, ...how })
    await producer.send({ topic, messages: [{ value }] })
    met[name] = await call("hits", { fault })
    await call("heal", { fault })
  }
  await send("refused", { error: "NOT_LEADER_OR_FOLLOWER", times: 2 }, "refused twice")
  await send("lost", { lose_answer: true, times: 1 }, "never heard of")
  await producer.disconnect()
  const stored = await call("messages", { topic })
  const values = stored.map(each => Buffer.from(each.value, "base64").toString())
  process.stdout.write(JSON.stringify({ ...met, stored: values }) + "\n")
}

main().catch(error => {
  process.stderr.write(`${error.stack}\n`)
  process.exit(1)
})
