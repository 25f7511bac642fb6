// Steps of a module without a workflow, which only others import.
export async function imported() {
  'use step';
  return 'a step of another module';
}
