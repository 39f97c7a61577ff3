// An event loop with timers, an HTTP server, a worker thread, the thread pool and a file; judges itself at SIGTERM.
//
// Usage: server.js FOLDER PORT. GET /next: one more than the last time. GET /state: counters that only ever grow.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const path = require('path');
const { Worker, isMainThread, parentPort } = require('worker_threads');

if (isMainThread) main(process.argv[2], Number(process.argv[3]));
else answerNumbers();

function answerNumbers() {
  parentPort.on('message', (number) => parentPort.postMessage(number * 2));
}

function main(folder, port) {
  const counters = { intervals: 0, timeouts: 0, immediates: 0, hashes: 0, messages: 0, lines: 0 };
  const problems = [];
  const expect = (good, text) => {
    if (!good) { problems.push(text); console.error(text); }
  };
  let next = 0;
  let stopping = false;

  const interval = setInterval(() => { counters.intervals += 1; }, 2);
  const again = () => { counters.timeouts += 1; if (!stopping) setTimeout(again, 3); };
  again();
  // A promise chain through the event loop.
  (async () => {
    while (!stopping) { await new Promise((done) => setImmediate(done)); counters.immediates += 1; await sleep(1); }
  })();
  // The thread pool: the same input gives the same hash.
  const hash = () => crypto.pbkdf2('word', 'salt', 200, 16, 'sha256', (error, key) => {
    const text = error ? String(error) : key.toString('hex');
    hash.first = hash.first || text;
    expect(text === hash.first, `hash ${text}, before ${hash.first}`);
    counters.hashes += 1;
    if (!stopping) setTimeout(hash, 1);
  });
  hash();
  const worker = new Worker(__filename);
  worker.on('message', (number) => {
    expect(number === 2 * counters.messages, `the worker sent ${number} at ${counters.messages}`);
    counters.messages += 1;
    if (!stopping) setTimeout(() => worker.postMessage(counters.messages), 1);
  });
  worker.postMessage(0);
  const log = fs.createWriteStream(path.join(folder, 'log'));
  const write = () => {
    counters.lines += 1;
    log.write(`${counters.lines}\n`, () => { if (!stopping) setTimeout(write, 1); });
  };
  write();

  const server = http.createServer((request, response) => {
    if (request.url === '/next') response.end(String(++next));
    else response.end([problems.length, ...Object.values(counters)].join(' '));
  });
  server.keepAliveTimeout = 3600 * 1000;
  server.listen(port, '127.0.0.1');

  process.on('SIGTERM', () => {
    stopping = true;
    clearInterval(interval);
    server.closeAllConnections();
    server.close(async () => {
      await worker.terminate();
      log.end(() => {
        const lines = fs.readFileSync(path.join(folder, 'log'), 'ascii').trim().split('\n');
        expect(lines.length === counters.lines, `${lines.length} lines, ${counters.lines} written`);
        expect(lines.every((line, index) => line === String(index + 1)), 'a line is missing or there twice');
        console.log('judged', counters);
        process.exit(problems.length ? 1 : 0);
      });
    });
  });
}

function sleep(ms) { return new Promise((done) => setTimeout(done, ms)); }
