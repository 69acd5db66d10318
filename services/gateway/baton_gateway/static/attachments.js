// Pictures, clips and sounds that go with a question.

import * as clips from "./clips.js";
import * as pictures from "./pictures.js";
import * as sounds from "./sounds.js";

/** Read a file: its kind of part, its name, its data: URL, and a canvas of it. */
export async function read(file) {
  if (clips.TYPES.includes(file.type)) return clips.read(file);
  if (pictures.TYPES.includes(file.type)) return pictures.read(file);
  if (sounds.TYPES.includes(file.type)) return sounds.read(file);
  throw new Error(`${file.name} is no picture, clip or sound that this page takes.`);
}

/** The content of a message: the text alone, or what goes with it before the text. */
export function content(text, attached) {
  if (!attached.length) return text;
  const parts = attached.map(({ kind, url }) => ({ type: kind, [kind]: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}
