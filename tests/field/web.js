// A web server in JavaScript: parsing, hashing and compression for each request. Prints `port N`.
const http = require('http');
const crypto = require('crypto');
const zlib = require('zlib');

function work(rounds) {
  const seen = {};
  for (let i = 0; i < rounds; i++) seen['k' + (i % 97)] = JSON.parse(JSON.stringify({ a: i, b: [i, i + 1] }));
  return Object.keys(seen).length;
}

const server = http.createServer((request, response) => {
  const keys = work(200);
  const digest = crypto.createHash('sha256').update('x'.repeat(1000)).digest('hex');
  zlib.deflate('y'.repeat(4000), (error, packed) => {
    zlib.inflate(packed, (error, text) => response.end(`ok ${keys} ${digest.slice(0, 8)} ${text.length}`));
  });
});
server.listen(0, '127.0.0.1', () => console.log('port ' + server.address().port));
