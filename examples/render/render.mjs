// Draws report.json as chart.svg: one bar of warming per decade for each station.
import { readFile, writeFile } from 'node:fs/promises'

const report = JSON.parse(await readFile('report.json', 'utf8'))
const stations = Object.entries(report)
const widest = Math.max(...stations.map(([, r]) => Math.abs(r.trend_per_decade)))
const width = 640, row = 48, left = 120, scale = (width - left - 80) / widest

const escape = (s) => s.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`)
const bars = stations.map(([name, r], i) => {
  const y = 56 + i * row
  const w = Math.abs(r.trend_per_decade) * scale
  const colour = r.trend_per_decade >= 0 ? '#c2410c' : '#1d4ed8'
  return `  <text x="${left - 12}" y="${y + 19}" text-anchor="end">${escape(name)}</text>
  <rect x="${left}" y="${y}" width="${w.toFixed(1)}" height="28" rx="4" fill="${colour}"/>
  <text x="${left + w + 10}" y="${y + 19}">${r.trend_per_decade > 0 ? '+' : ''}${r.trend_per_decade} °C</text>`
})

await writeFile('chart.svg', `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${72 + stations.length * row}" font-family="sans-serif" font-size="15">
  <rect width="100%" height="100%" fill="white"/>
  <text x="${left}" y="32" font-size="18" font-weight="bold">Warming per decade</text>
${bars.join('\n')}
</svg>
`)

for (const [name, r] of stations) {
  console.log(`${name.padEnd(10)} ${'█'.repeat(Math.round(Math.abs(r.trend_per_decade) / widest * 40))} ${r.trend_per_decade} °C per decade`)
}
