// This module is loaded before the suite and before the app that the suite starts.

// Node 20 has no Promise.withResolvers.
Promise.withResolvers ??= function () {
  const d = {};
  d.promise = new this((resolve, reject) => Object.assign(d, { resolve, reject }));
  return d;
};

// The suite's app counts deliveries by their JSON. Deliveries of this World are CBOR, which the
// app's counter gets decoded here; the SDK reads bodies by itself.
const { json } = Request.prototype;
Request.prototype.json = async function () {
  if (this.headers.get('content-type') !== 'application/cbor') return json.call(this);
  const { decode } = await import('cbor-x');
  return decode(new Uint8Array(await this.arrayBuffer()));
};
