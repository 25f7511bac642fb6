import { getSandbox, Sandbox } from "@cloudflare/sandbox";

export { ContainerProxy } from "@cloudflare/sandbox";

const say = (who) => (request, env, ctx) => new Response(`${who}: ${request.method} ${request.url} of ${ctx.className}\n`);

// Offline reaches nothing but what its handlers answer: a host by its name, and by TLS too.
export class Offline extends Sandbox {
  enableInternet = false;
  interceptHttps = true;
}
Offline.outboundByHost = { "vault.test": say("vault") };
Offline.outboundHandlers = { late: say("late") };

// Online reaches the internet, except for what its handlers answer.
export class Online extends Sandbox {
  interceptHttps = true;
}
Online.outboundByHost = { "vault.test": say("vault"), "*.api.test": say("api") };

// GET /CLASS/METHOD?argument=... calls a method of a sandbox.
export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const [, kind, method] = url.pathname.split("/");
    try {
      const result = await getSandbox(env[kind], "one")[method](...url.searchParams.getAll("argument"));
      return Response.json(result ?? null);
    } catch (error) {
      return Response.json({ error: String(error) }, { status: 500 });
    }
  },
};
