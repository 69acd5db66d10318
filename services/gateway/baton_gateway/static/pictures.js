// Pictures that go with a question. They are shown on canvases: the page's policy allows no data: URLs.

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const LONGEST = 1568; // pixels of the longer side, beyond which models see no more

/** Read a file. Returns its name, its data: URL as models get it, and a canvas of it. */
export async function read(file) {
  if (!TYPES.includes(file.type)) throw new Error(`${file.name} is no PNG, JPEG, WebP or GIF.`);
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} cannot be read as a picture.`);
  });
  const canvas = draw(bitmap, LONGEST);
  const scaled = canvas.width < bitmap.width || canvas.height < bitmap.height;
  bitmap.close();
  // What a canvas cannot write, such as GIF, it writes as PNG.
  const url = scaled ? canvas.toDataURL(file.type, 0.9) : await dataUrl(file);
  return { name: file.name, url, canvas };
}

/** A new canvas of a picture, scaled down to a longer side of at most `edge` pixels. */
function draw(source, edge) {
  const scale = Math.min(1, edge / Math.max(source.width, source.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(source.width * scale));
  canvas.height = Math.max(1, Math.round(source.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(source, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** A canvas to put on the page, named for those who do not see it. */
export function thumbnail(picture, edge) {
  const canvas = draw(picture.canvas, edge);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", picture.name);
  return canvas;
}

/** The content of a message: the text alone, or its pictures before it. */
export function content(text, pictures) {
  if (!pictures.length) return text;
  const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}
