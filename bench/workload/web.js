// A trivial web server, and a client of it.
//
//   web.js serve PORT             answers every request alike
//   web.js load PORT CONNS MS     prints requests/s, and the median latency in ms
const net = require('net')
const [what, port, conns, duration] = process.argv.slice(1) // node -e
const end = Buffer.from('\r\n\r\n')

// each calls done once for every head in a stream of requests or responses
// without bodies, which may come in pieces.
const each = (done) => {
  let rest = Buffer.alloc(0)
  return (data) => {
    rest = rest.length ? Buffer.concat([rest, data]) : data
    for (let i; (i = rest.indexOf(end)) >= 0; rest = rest.subarray(i + 4)) done()
  }
}

if (what === 'serve') {
  const answer = 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'
  net.createServer((c) => {
    c.setNoDelay(true)
    c.on('error', () => c.destroy())
    c.on('data', each(() => c.write(answer)))
  }).listen(Number(port), () => console.log('listening'))
} else {
  const request = 'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n'
  const times = []
  const begun = process.hrtime.bigint()
  for (let i = 0; i < Number(conns); i++) {
    const c = net.connect(Number(port), '127.0.0.1')
    let sent
    const send = () => { sent = process.hrtime.bigint(); c.write(request) }
    c.setNoDelay(true)
    c.on('connect', send)
    c.on('data', each(() => { times.push(Number(process.hrtime.bigint() - sent)); send() }))
  }
  setTimeout(() => {
    const seconds = Number(process.hrtime.bigint() - begun) / 1e9
    times.sort((a, b) => a - b)
    console.log(times.length / seconds, times[times.length >> 1] / 1e6)
    process.exit(0)
  }, Number(duration))
}
