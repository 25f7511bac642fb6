// Functions and objects that steps get.
import { add } from './sums';

async function double(n: number) {
  'use step';
  return 2 * n;
}

async function apply(step: (n: number) => Promise<unknown>, n: number) {
  'use step';
  return { applied: await step(n) };
}

export async function passed(n: number) {
  'use workflow';
  return apply(double, n);
}

export async function passedWithClosure(n: number) {
  'use workflow';
  const factor = 5;
  const unit = 'kg';
  const weigh = async (count: number) => {
    'use step';
    return `${count * factor} ${unit}`;
  };
  return apply(weigh, n);
}

export async function closure(n: number) {
  'use workflow';
  let factor = 2;
  factor += 1;
  const unit = 'm';
  const measure = async () => {
    'use step';
    return `${n * factor} ${unit}`;
  };
  return measure();
}

async function call(step: (a: number, b: number) => Promise<number>, a: number, b: number) {
  'use step';
  return step(a, b);
}

/** Gets a step as an argument of the run. */
export async function given(step: typeof add, a: number, b: number) {
  'use workflow';
  const own = await step(a, b);
  return { own, byStep: await call(step, a, b), again: await step(own, own) };
}

async function scale(this: { factor: number }, n: number) {
  'use step';
  return n * this.factor;
}

export async function withThis(n: number) {
  'use workflow';
  const once = await scale.call({ factor: 2 }, n);
  return scale.apply({ factor: 7 }, [once]);
}

export class Arithmetic {
  static async plus(a: number, b: number) {
    'use step';
    return a + b;
  }
  static async times(a: number, b: number) {
    'use step';
    return a * b;
  }
}

export class Area {
  static async ofFrame(width: number, height: number) {
    'use workflow';
    return Arithmetic.times(await Arithmetic.plus(width, height), 2);
  }
}

export class Both {
  static async half(n: number) {
    'use step';
    return n / 2;
  }
  static async square(n: number) {
    'use step';
    return n * n;
  }
  static async halfAndSquare(n: number) {
    'use workflow';
    return (await Both.half(n)) + (await Both.square(n));
  }
}

export class Rated {
  static rate = 4;
  static async price(this: typeof Rated, n: number) {
    'use step';
    return n * this.rate;
  }
  static async prices(n: number) {
    'use workflow';
    return { one: await Rated.price(1), all: await Rated.price(n) };
  }
}

export class Size {
  constructor(
    readonly width: number,
    readonly height: number,
  ) {}
  static [Symbol.for('workflow-serialize')](size: Size) {
    return [size.width, size.height];
  }
  static [Symbol.for('workflow-deserialize')]([width, height]: [number, number]) {
    return new Size(width, height);
  }
  area() {
    return this.width * this.height;
  }
}

async function larger(size: Size, by: number) {
  'use step';
  return new Size(size.width * by, size.area() === size.width * size.height ? size.height * by : Number.NaN);
}

async function areaOf(sizes: Size[]) {
  'use step';
  return sizes.reduce((sum, size) => sum + size.area(), 0);
}

/** Instances of a class that says how it is serialized. */
export async function custom(width: number, height: number) {
  'use workflow';
  const size = new Size(width, height);
  const large = await larger(size, 2);
  const larger4 = await larger(large, 2);
  return { large: large.area(), larger: [larger4.width, larger4.height], total: await areaOf([size, large, larger4]) };
}

export class Account {
  constructor(readonly balance: number) {}
  static [Symbol.for('workflow-serialize')](account: Account) {
    return { balance: account.balance };
  }
  static [Symbol.for('workflow-deserialize')]({ balance }: { balance: number }) {
    return new Account(balance);
  }
  async after(deposit: number) {
    'use step';
    return this.balance + deposit;
  }
  async report(label: string) {
    'use step';
    return { label, balance: this.balance };
  }
}

/** Steps that are methods of instances. */
export async function methods(balance: number) {
  'use workflow';
  const [one, other] = [new Account(balance), new Account(1000)];
  return { one: await one.after(5), report: await one.report('mine'), other: await other.after(1) };
}
