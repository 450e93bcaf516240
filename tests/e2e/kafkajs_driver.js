// One command of kafkajs for test_kafkajs.py: node kafkajs_driver.js COMMAND '{"brokers": [...], ...}'
// Prints the result as a line of JSON; "member" prints one line per event.
"use strict"

const { setTimeout: sleep } = require("node:timers/promises")
const kafkajs = require("kafkajs")

const { CompressionTypes, CompressionCodecs } = kafkajs
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
CompressionCodecs[CompressionTypes.Snappy] = () => require("kafkajs-snappy")()
CompressionCodecs[CompressionTypes.LZ4] = () => {
  const lz4 = require("lz4-napi")
  return { compress: encoder => lz4.compressFrame(encoder.buffer), decompress: lz4.decompressFrame }
}
let zstd // initialized once: a repeated init() garbles what it compresses later
CompressionCodecs[CompressionTypes.ZSTD] = () => {
  const { init, compress, decompress } = require("@bokuweb/zstd-wasm")
  zstd ??= init()
  return {
    compress: async encoder => (await zstd, Buffer.from(compress(encoder.buffer))),
    decompress: async buffer => (await zstd, Buffer.from(decompress(buffer))),
  }
}

const given = JSON.parse(process.argv[3])
const kafka = new kafkajs.Kafka({
  brokers: given.brokers,
  retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 60 },
  logLevel: kafkajs.logLevel.ERROR,
  logCreator: () => ({ label, log }) => process.stderr.write(`${label} ${JSON.stringify(log)}\n`),
})

const answer = found => process.stdout.write(JSON.stringify(found) + "\n")
const ended = new Promise(resolve => process.once("SIGTERM", resolve))

async function connected(client, use) {
  await client.connect()
  try {
    return await use(client)
  } finally {
    await client.disconnect()
  }
}

const producer = config =>
  kafka.producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner, ...config })
const transactional = transactionalId =>
  producer({ transactionalId, idempotent: true, maxInFlightRequests: 1, transactionTimeout: 30000 })
const consumer = (groupId, config = {}) =>
  kafka.consumer({ groupId, sessionTimeout: 3000, heartbeatInterval: 200, maxWaitTimeInMs: 100, ...config })

// The next `count` messages of a topic as [offset, value]; `begin` may seek.
async function read(reader, topic, count, begin = () => {}) {
  const found = []
  await reader.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise((resolve, reject) => {
    reader.on(reader.events.CRASH, event => reject(event.payload.error))
    const eachMessage = async ({ message }) => {
      found.push([Number(message.offset), message.value.toString()])
      if (found.length === count) resolve()
    }
    reader.run({ autoCommit: false, eachMessage }).catch(reject)
    begin()
  })
  return found
}

const commands = {
  async produce({ topic, values, codec = "none", acks = -1, idempotent = false, perRequest, times = [] }) {
    const offsets = []
    await connected(producer({ idempotent, maxInFlightRequests: 1 }), async sender => {
      for (let at = 0; at < values.length; at += perRequest) {
        const messages = values
          .slice(at, at + perRequest)
          .map((value, index) => ({ value, ...(times.length && { timestamp: String(times[at + index]) }) }))
        const sent = await sender.send({ topic, messages, acks, compression: CODECS[codec] })
        offsets.push(...(sent ?? []).map(each => Number(each.baseOffset)))
      }
    })
    return { offsets }
  },

  async consume({ topic, group, count, readUncommitted = false, seek }) {
    const messages = await connected(consumer(group, { readUncommitted }), reader =>
      read(reader, topic, count, () => {
        if (seek !== undefined) reader.seek({ topic, partition: 0, offset: String(seek) })
      })
    )
    return { messages }
  },

  async commit({ topic, group, offset }) {
    await connected(consumer(group), async reader => {
      await read(reader, topic, 1)
      await reader.commitOffsets([{ topic, partition: 0, offset: String(offset) }])
    })
  },

  // A member of a group until SIGTERM. What it read is printed before it is committed.
  async member({ topic, group }) {
    await connected(consumer(group), async reader => {
      reader.on(reader.events.GROUP_JOIN, ({ payload }) =>
        answer({ assigned: payload.memberAssignment[topic] ?? [] })
      )
      reader.on(reader.events.CRASH, event => {
        if (!event.payload.restart) process.exit(1)
      })
      await reader.subscribe({ topics: [topic], fromBeginning: true })
      const eachBatch = async ({ batch, resolveOffset, commitOffsetsIfNecessary, uncommittedOffsets }) => {
        answer({ read: batch.messages.map(message => message.value.toString()) })
        resolveOffset(batch.lastOffset())
        await commitOffsetsIfNecessary(uncommittedOffsets())
      }
      await reader.run({ eachBatch })
      await ended
    })
    return { left: true }
  },

  async offsets({ topic, times }) {
    return connected(kafka.admin(), async admin => {
      const at = []
      for (const time of times) at.push(Number((await admin.fetchTopicOffsetsByTimestamp(topic, time))[0].offset))
      return { ends: await admin.fetchTopicOffsets(topic), at }
    })
  },

  // Commits, aborts, commits with offsets, and is fenced by another producer of the same id.
  async transactions({ topic, group, id }) {
    const send = (transaction, value) => transaction.send({ topic, messages: [{ value }] })
    const first = transactional(id)
    const second = transactional(id)
    return connected(first, async () => {
      let transaction = await first.transaction()
      await send(transaction, "first")
      await transaction.commit()
      transaction = await first.transaction()
      await send(transaction, "aborted")
      await transaction.abort()
      transaction = await first.transaction()
      await send(transaction, "second")
      const topics = [{ topic, partitions: [{ partition: 0, offset: "10" }] }]
      await transaction.sendOffsets({ consumerGroupId: group, topics })
      await transaction.commit()
      await connected(second, async () => {
        const other = await second.transaction()
        await send(other, "third")
        await other.commit()
      })
      transaction = await first.transaction()
      const fenced = await send(transaction, "fenced").then(() => "", error => error.type ?? error.name)
      return { fenced }
    })
  },

  async administer({ topic, group }) {
    return connected(kafka.admin(), async admin => {
      const found = {}
      const resource = { type: kafkajs.ConfigResourceTypes.TOPIC, name: topic }
      const partitions = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions
      const config = async () => {
        const { resources } = await admin.describeConfigs({ resources: [resource] })
        return resources[0].configEntries.find(each => each.configName === "retention.ms").configValue
      }
      found.cluster = await admin.describeCluster()
      const topics = [{ topic, numPartitions: 2, replicationFactor: 3 }]
      found.created = await admin.createTopics({ topics, waitForLeaders: true })
      found.createdAgain = await admin.createTopics({ topics })
      await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
      while ((await partitions()).length < 4 || (await partitions()).some(each => each.leader < 0)) await sleep(50)
      await admin.alterConfigs({
        resources: [{ ...resource, configEntries: [{ name: "retention.ms", value: "123456" }] }],
      })
      while ((await config()) !== "123456") await sleep(50)
      await connected(producer(), sender =>
        sender.send({ topic, messages: [..."abcde"].map(value => ({ value, partition: 0 })) })
      )
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "3" }] })
      found.low = (await admin.fetchTopicOffsets(topic)).find(each => each.partition === 0).low
      const replicas = [(await partitions()).find(each => each.partitionId === 0).replicas[0]]
      await admin.alterPartitionReassignments({
        topics: [{ topic, partitionAssignment: [{ partition: 0, replicas }] }],
      })
      while ((await partitions()).find(each => each.partitionId === 0).replicas.length > 1) await sleep(50)
      found.moving = (await admin.listPartitionReassignments({})).topics
      await commands.commit({ topic, group, offset: 4 })
      const [{ partitions: committed }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      found.committed = committed.filter(each => each.partition === 0).map(each => each.offset)
      found.group = (await admin.describeGroups([group])).groups[0].state
      found.listed = (await admin.listGroups()).groups.some(each => each.groupId === group)
      found.deleted = (await admin.deleteGroups([group])).map(each => each.errorCode ?? 0)
      const entry = {
        resourceType: kafkajs.AclResourceTypes.TOPIC,
        resourceName: topic,
        resourcePatternType: kafkajs.ResourcePatternTypes.LITERAL,
        principal: "User:bob",
        host: "*",
        operation: kafkajs.AclOperationTypes.READ,
        permissionType: kafkajs.AclPermissionTypes.ALLOW,
      }
      await admin.createAcls({ acl: [entry] })
      const acls = async () => (await admin.describeAcls(entry)).resources.flatMap(each => each.acls).length
      while ((await acls()) !== 1) await sleep(50)
      const { filterResponses } = await admin.deleteAcls({ filters: [entry] })
      found.revoked = filterResponses.flatMap(each => each.matchingAcls).map(each => each.principal)
      await admin.deleteTopics({ topics: [topic] })
      while ((await admin.listTopics()).includes(topic)) await sleep(50)
      return found
    })
  },

  // Produces, runs transactions and creates topics until SIGTERM: see kafka_site.Outcome.
  async load({ prefix }) {
    let ending = false
    ended.then(() => (ending = true))
    const found = { written: 0, committed: [], unknown: [], topics: [], errors: [] }

    async function write() {
      await connected(producer({ idempotent: true, maxInFlightRequests: 1 }), async sender => {
        for (; !ending; found.written++) {
          const messages = [{ value: String(found.written) }]
          await sender.send({ topic: `${prefix}-written`, messages })
          await sleep(5)
        }
      })
    }

    async function transact() {
      let sender = transactional(prefix)
      await sender.connect()
      for (let round = 0; !ending; round++) {
        try {
          const transaction = await sender.transaction()
          // One partition per send: of several, kafkajs 2.2.4 drops one whose next leader already answered for
          // another (its issue 1303).
          for (const partition of [0, 1, 2]) {
            const messages = [{ value: String(round), partition }]
            await transaction.send({ topic: `${prefix}-transactions`, messages })
          }
          if (round % 3 === 2) {
            await transaction.abort()
          } else {
            found.unknown.push(round)
            await transaction.commit()
            found.committed.push(found.unknown.pop())
          }
        } catch (error) {
          // kafkajs cannot end such a transaction; the next producer of the same id does.
          found.errors.push(`${round}: ${error.type ?? error.message}`)
          await sender.disconnect()
          sender = transactional(prefix)
          await sender.connect()
        }
        await sleep(20)
      }
      await sender.disconnect()
    }

    async function create() {
      await connected(kafka.admin(), async admin => {
        while (!ending) {
          const topic = `${prefix}-topic-${found.topics.length}`
          try {
            await admin.createTopics({ waitForLeaders: false, topics: [{ topic, numPartitions: 1 }] })
            found.topics.push(topic)
          } catch (error) {
            // Its admin client does not reconnect automatically.
            if (error.name !== "KafkaJSConnectionError" && error.name !== "KafkaJSConnectionClosedError") throw error
          }
          await sleep(200)
        }
      })
    }

    const counts = () => answer({ counts: [found.written, found.committed.length, found.topics.length] })
    const ticker = setInterval(counts, 100)
    await Promise.all([write(), transact(), create()])
    clearInterval(ticker)
    return found
  },
}

commands[process.argv[2]](given).then(
  found => {
    answer(found ?? {})
    // Connection attempts to a dead broker may keep node alive: it has disconnected, and exits here.
    process.stdout.write("", () => process.exit(0))
  },
  error => {
    process.stderr.write(`${error.stack}\n`)
    process.exit(1)
  }
)
