// A client of the Worker: runs a program, and shows what it wrote and the agent's state.
//
//   node client.mjs [HOST [keep]]     keep: the sandbox is not ended
import { AgentClient } from "agents/client";

const host = process.argv[2] ?? "localhost:8787";
const agent = new AgentClient({
  agent: "code-runner",
  name: `demo-${process.pid}`,
  host,
  protocol: "ws",
  onStateUpdate: (state, source) => console.log("state", source, JSON.stringify(state)),
});
const program = "import platform, sys\nprint(6 * 7)\nprint(platform.release(), file=sys.stderr)\nsys.exit(3)\n";
console.log("result", JSON.stringify(await agent.call("runPython", [program])));
if (process.argv[3] !== "keep") await agent.call("stop");
agent.close();
