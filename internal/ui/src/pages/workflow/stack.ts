/** What paths of the machinery have, rather than those of the program. Go's own begin with the package if built with -trimpath. */
const machinery = /(^|\/src\/)(runtime|reflect|testing)\/|\/debug\/stack\.go|^node:|\/node_modules\//;

/** position is where in the code a stack says that it happened, "" if it does not say. */
export function position(stack: string): string {
  const lines = stack.split('\n').slice(0, 400);
  // A goroutine that has recovered says what it did then, and below the panic where that was.
  const from = lines.findLastIndex((l) => l.startsWith('panic('));
  for (const line of lines.slice(from + 1)) {
    const at = /^\s+(\S+\.go:\d+)( \+0x[0-9a-f]+)?$/.exec(line) ?? /^\s*at (?:.*\()?((?:file:\/\/)?[^()\s]+:\d+:\d+)\)?$/.exec(line);
    if (at && !machinery.test(at[1]!)) return at[1]!;
  }
  return '';
}
