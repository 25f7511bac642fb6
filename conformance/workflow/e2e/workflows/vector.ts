// A class that only steps import.
export class Vector {
  constructor(readonly parts: number[]) {}
  static [Symbol.for('workflow-serialize')](v: Vector) {
    return { parts: v.parts };
  }
  static [Symbol.for('workflow-deserialize')]({ parts }: { parts: number[] }) {
    return new Vector(parts);
  }
  plus(other: Vector) {
    return new Vector(this.parts.map((n, i) => n + other.parts[i]));
  }
}
