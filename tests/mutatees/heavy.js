// A program for node that speaks the protocol of the other target programs: `go N` does N rounds of work and says how many were wrong; a
// second thread and the time between two commands are busy with the same.
const { createHash } = require('crypto');
const { Worker, isMainThread } = require('worker_threads');
const { deflateSync, inflateSync } = require('zlib');

function round(i) {
  const text = JSON.stringify({ i, list: Array.from({ length: 40 }, (_, k) => (k * 7919) % 101) });
  const parsed = JSON.parse(inflateSync(deflateSync(text)).toString());
  const sorted = parsed.list.sort((a, b) => a - b).map(String).join(',').replace(/9(\d)/g, '$1');
  const hash = createHash('sha256').update(sorted).digest('hex');
  return parsed.i === i && hash.length === 64 && sorted.split(',').length === 40 && hash === (round.first ??= hash);
}

function busy() {
  for (let i = 0; i < 5; i++) if (!round(i)) process.exit(4);
  setImmediate(busy);
}

busy();
if (isMainThread) {
  new Worker(__filename).on('error', () => process.exit(5));
  process.stdout.write('ready\n');
  let rest = '';
  process.stdin.on('data', (data) => {
    const lines = (rest + data).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      let wrong = 0;
      for (let i = 0; i < Number(line.split(' ')[1]); i++) wrong += round(i) ? 0 : 1;
      process.stdout.write(`wrong ${wrong}\ndone\n`);
    }
  });
  process.stdin.on('end', () => process.exit(0));
}
