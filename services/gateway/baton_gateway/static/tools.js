// Tools that the page answers itself, to show how a model calls and goes on with what it is told.

/** As requests name them. */
export const TOOLS = [
  {
    type: "function",
    function: {
      name: "clock",
      description: "The current date and time.",
      parameters: {
        type: "object",
        properties: {
          time_zone: { type: "string", description: "IANA name, such as Asia/Tokyo. Default: the user's." },
        },
        additionalProperties: false,
      },
    },
  },
  {
    type: "function",
    function: {
      name: "calculator",
      description: "The value of an arithmetic expression.",
      parameters: {
        type: "object",
        properties: {
          expression: { type: "string", description: "Numbers, + - * / % ^ and parentheses." },
        },
        required: ["expression"],
        additionalProperties: false,
      },
    },
  },
];

/** What a call returns, as text for the model. A mistake is told to it too. */
export function run(name, args) {
  try {
    const given = JSON.parse(args || "{}");
    if (name === "clock") return clock(given.time_zone);
    if (name === "calculator") return String(calculate(String(given.expression)));
    return `There is no tool '${name}'.`;
  } catch (error) {
    return `Error: ${error.message}`;
  }
}

function clock(timeZone) {
  const options = { dateStyle: "full", timeStyle: "long", ...(timeZone ? { timeZone } : {}) };
  return new Intl.DateTimeFormat("en", options).format(new Date());
}

const RANKS = [{ "+": (a, b) => a + b, "-": (a, b) => a - b }, { "*": (a, b) => a * b, "/": (a, b) => a / b, "%": (a, b) => a % b }];

/** Value of an expression, by recursive descent: nothing of it is ever run as code. */
export function calculate(text) {
  const tokens = text.match(/\d+\.?\d*(?:e[+-]?\d+)?|\.\d+|\S/gi) ?? [];
  let at = 0;
  const rank = (level) => {
    if (level === RANKS.length) return sign();
    let value = rank(level + 1);
    while (tokens[at] in RANKS[level]) value = RANKS[level][tokens[at++]](value, rank(level + 1));
    return value;
  };
  const sign = () => {
    if (tokens[at] === "-" || tokens[at] === "+") return tokens[at++] === "-" ? -sign() : sign();
    const base = atom();
    if (tokens[at] !== "^") return base;
    at += 1;
    return base ** sign();
  };
  const atom = () => {
    const token = tokens[at++];
    if (token !== "(") return amount(token);
    const value = rank(0);
    if (tokens[at++] !== ")") throw new Error("a parenthesis is not closed");
    return value;
  };
  const value = rank(0);
  if (at < tokens.length) throw new Error(`'${tokens[at]}' is not expected`);
  return value;
}

function amount(token) {
  const value = Number(token);
  if (token === undefined || Number.isNaN(value)) throw new Error(`'${token ?? "the end"}' is no number`);
  return value;
}
