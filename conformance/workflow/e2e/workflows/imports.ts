// Modules that workflows and steps import.
import { byAlias } from '@e2e/alias';
import { imported } from './_only_steps';
import { subtract } from './direct.mjs';

export async function importedStep() {
  'use workflow';
  return imported();
}

async function aliased() {
  'use step';
  return byAlias();
}

export async function alias() {
  'use workflow';
  return aliased();
}

export async function subtracted(a: number, b: number) {
  'use workflow';
  return subtract(a, b);
}

async function moduleAddress() {
  'use step';
  return import.meta.url;
}

export async function importMeta() {
  'use workflow';
  return moduleAddress();
}
