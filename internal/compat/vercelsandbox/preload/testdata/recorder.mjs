// Takes the place of the network, before the module under test is loaded.
import tls from 'node:tls';

globalThis.fetch = async (input, init) => {
  const request = input instanceof Request;
  return { called: request ? input.url : String(input), method: request ? input.method : init?.method, init };
};
tls.connect = (...args) => ({ connected: args });
