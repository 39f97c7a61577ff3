"""Node.js with timers and a worker thread. It appends a line to a file in each step."""
from lib.program import Job

SOURCE = r'''
const fs = require("fs");
const { Worker } = require("worker_threads");
const [steps, pause, out] = [+process.env.FIELD_STEPS, 1000 * process.env.FIELD_STEP_S, process.env.FIELD_OUT];
const worker = new Worker(`
  const { parentPort } = require("worker_threads");
  let value = 1;
  parentPort.on("message", step => { value = (value * 1021 + step) % 1000003; parentPort.postMessage(value); });
`, { eval: true });
const file = fs.openSync(out, "a");
let step = 1;
worker.on("message", value => {
  fs.writeSync(file, `${step} ${value}\n`);
  step += 1;
  if (step > steps) { worker.terminate(); fs.closeSync(file); return; }
  setTimeout(() => worker.postMessage(step), pause);
});
worker.postMessage(step);
'''


class Node(Job):
    name, group, quick = "node", "language", True
    needs = {"node": "nodejs"}
    source, source_name = SOURCE, "job.js"

    def program(self):
        return ["node", self.path("job.js")]
