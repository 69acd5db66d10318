// Pictures that go with a question. They are shown on canvases: the page's policy allows no data: URLs.

export const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
export const LONGEST = 1568; // pixels of the longer side, beyond which models see no more

/** Read a file. Returns its name, its data: URL as models get it, and a canvas of it. */
export async function read(file) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} cannot be read as a picture.`);
  });
  const canvas = draw(bitmap, LONGEST);
  const scaled = canvas.width < bitmap.width || canvas.height < bitmap.height;
  bitmap.close();
  // What a canvas cannot write, such as GIF, it writes as PNG.
  const url = scaled ? canvas.toDataURL(file.type, 0.9) : await dataUrl(file);
  return { kind: "image_url", name: file.name, url, canvas };
}

/** A new canvas of a picture, scaled down to a longer side of at most `edge` pixels. */
export function draw(source, edge, width = source.width, height = source.height) {
  const scale = Math.min(1, edge / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(source, 0, 0, canvas.width, canvas.height);
  return canvas;
}

export function dataUrl(file) {
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
