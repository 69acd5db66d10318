// Sounds that go with a question. On the page their loudness over time stands for them.

import { dataUrl } from "./pictures.js";

export const TYPES = [
  ...["audio/wav", "audio/x-wav", "audio/mpeg", "audio/flac", "audio/x-flac"],
  ...["audio/ogg", "audio/webm", "audio/mp4", "audio/x-m4a"],
];
const MOST = 16 * 2 ** 20; // bytes: a request with it fits the server's limit
const [WIDTH, HEIGHT, BAR] = [480, 120, 6]; // pixels

/** Read a file. Returns its name, its data: URL as models get it, and a canvas of its loudness. */
export async function read(file) {
  if (file.size > MOST) throw new Error(`${file.name} has more than ${MOST / 2 ** 20} MiB.`);
  const peaks = await loudness(file);
  return { kind: "audio_url", name: file.name, url: await dataUrl(file), canvas: bars(peaks) };
}

/** The peak of each bar, 0 to 1; of a sound that this browser cannot decode, none is higher. */
async function loudness(file) {
  const context = new OfflineAudioContext(1, 1, 16000);
  const count = WIDTH / BAR;
  const sound = await context.decodeAudioData(await file.arrayBuffer()).catch(() => null);
  if (!sound) return Array(count).fill(0.2);
  const samples = sound.getChannelData(0);
  return Array.from({ length: count }, (_, bar) => {
    const part = samples.subarray((bar * samples.length) / count, ((bar + 1) * samples.length) / count);
    return part.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
  });
}

function bars(peaks) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [WIDTH, HEIGHT];
  const context = canvas.getContext("2d");
  context.fillStyle = "#8883";
  context.fillRect(0, 0, WIDTH, HEIGHT);
  context.fillStyle = "#d0602c";
  const highest = Math.max(...peaks, 1e-3);
  peaks.forEach((peak, bar) => {
    const height = Math.max(2, (0.9 * HEIGHT * peak) / highest);
    context.fillRect(bar * BAR + 1, (HEIGHT - height) / 2, BAR - 2, height);
  });
  return canvas;
}
