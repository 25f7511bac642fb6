// The same as index.js, with types: npx wrangler dev src/index.ts
import { getSandbox, type Sandbox } from "@cloudflare/sandbox";
import { Agent, callable, routeAgentRequest } from "agents";

export { Sandbox } from "@cloudflare/sandbox";

type Env = {
  Sandbox: DurableObjectNamespace<Sandbox>;
  CodeRunner: DurableObjectNamespace<CodeRunner>;
};

type State = { runs: number; lastOutput: string | null };

type Result = { success: boolean; stdout: string; stderr: string; exitCode: number };

// CodeRunner runs programs that clients send, each agent in a sandbox of its own.
export class CodeRunner extends Agent<Env, State> {
  initialState: State = { runs: 0, lastOutput: null };

  // runPython runs a program and returns what it wrote, and its exit code.
  @callable()
  async runPython(code: string): Promise<Result> {
    const sandbox = getSandbox(this.env.Sandbox, this.name);
    await sandbox.writeFile("/workspace/script.py", code);
    const { success, stdout, stderr, exitCode } = await sandbox.exec("python3 /workspace/script.py");
    this.setState({ runs: this.state.runs + 1, lastOutput: stdout });
    return { success, stdout, stderr, exitCode };
  }

  // stop ends the sandbox and removes it.
  @callable()
  async stop(): Promise<void> {
    await getSandbox(this.env.Sandbox, this.name).destroy();
  }
}

export default {
  async fetch(request: Request, env: Env): Promise<Response> {
    return (await routeAgentRequest(request, env)) ?? new Response("not found", { status: 404 });
  },
};
