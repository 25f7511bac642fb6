// A step that the app also calls as the function that it is.
export async function subtract(a, b) {
  'use step';
  return a - b;
}
