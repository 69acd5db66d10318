// Clips that go with a question. On the page a frame stands for each; a model takes its own frames.

import { dataUrl, draw, LONGEST } from "./pictures.js";

export const TYPES = ["video/mp4", "video/webm", "video/quicktime", "video/x-matroska"];
const MOST = 16 * 2 ** 20; // bytes: a request with it fits the server's limit
const PATIENCE = 5000; // milliseconds until a browser that cannot play it is believed

/** Read a file. Returns its name, its data: URL as models get it, and a canvas of its first frame. */
export async function read(file) {
  if (file.size > MOST) throw new Error(`${file.name} has more than ${MOST / 2 ** 20} MiB.`);
  return { kind: "video_url", name: file.name, url: await dataUrl(file), canvas: await frame(file) };
}

/** The first frame, or a grey field where this browser cannot play it, with a mark on it. */
async function frame(file) {
  const video = document.createElement("video");
  const url = URL.createObjectURL(file);
  video.muted = true;
  video.preload = "auto";
  await new Promise((resolve) => {
    video.onloadeddata = video.onerror = resolve;
    setTimeout(resolve, PATIENCE);
    video.src = url;
  });
  const seen = video.videoWidth > 0;
  const canvas = seen ? draw(video, LONGEST, video.videoWidth, video.videoHeight) : blank();
  video.removeAttribute("src");
  URL.revokeObjectURL(url);
  return marked(canvas);
}

function blank() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [320, 180];
  const context = canvas.getContext("2d");
  context.fillStyle = "#8888";
  context.fillRect(0, 0, canvas.width, canvas.height);
  return canvas;
}

/** The canvas with a triangle in a disc: it shows a clip. */
function marked(canvas) {
  const context = canvas.getContext("2d");
  const [x, y, r] = [canvas.width / 2, canvas.height / 2, Math.min(canvas.width, canvas.height) / 5];
  context.fillStyle = "#000a";
  context.beginPath();
  context.arc(x, y, r, 0, 2 * Math.PI);
  context.fill();
  context.fillStyle = "#fff";
  context.beginPath();
  context.moveTo(x - r / 3, y - r / 2);
  context.lineTo(x - r / 3, y + r / 2);
  context.lineTo(x + r / 1.8, y);
  context.fill();
  return canvas;
}
