// Where each node of the prefix tree stands in the picture: an icicle, from left to right.
//
// A node is as wide as its tokens and as high as all leaves below it, so that what many share is
// high, and what is long is wide:
//
//     ┌──────────────┬─────────┐
//     │ shared       │ leaf    │     one row for each leaf
//     │              ├───────┬─┘
//     │              │ leaf  │
//     └──────────────┴───────┘

const ROW = { least: 7, most: 22 };
const GAP = 8; // Between namespaces.
const LABEL = 20; // Above each namespace.
const NARROWEST = 3;
const MOST_NAMESPACES = 10; // Drawn; those that have most tokens.

/**
 * @param namespaces as the server lists them: nodes in order, parents first
 * @param width of the picture, in pixels
 * @param height that it should roughly have
 * @param root whether widths follow the square root of the tokens
 * @returns {{height: number, spaces: object[], boxes: object[], folded: object}} boxes in reading
 *   order; `folded` has how many `namespaces` with how many `tokens` are not among them
 */
export function layOut(namespaces, width, height, root) {
  const all = namespaces.map(grow).sort((a, b) => b.tokens - a.tokens || (a.name < b.name ? -1 : 1));
  const light = all.slice(MOST_NAMESPACES);
  const folded = { namespaces: light.length, tokens: light.reduce((sum, tree) => sum + tree.tokens, 0) };
  // Stable from one second to the next: by their names, the default one first.
  const trees = all.slice(0, MOST_NAMESPACES).sort((a, b) => (a.name < b.name ? -1 : 1));
  const leaves = trees.reduce((sum, tree) => sum + tree.rows, 0);
  const row = clamp((height - trees.length * (LABEL + GAP)) / Math.max(leaves, 1), ROW.least, ROW.most);
  const scale = root ? Math.sqrt : (tokens) => tokens;
  const widest = Math.max(1, ...trees.flatMap((tree) => tree.tops.map((top) => reach(top, scale))));
  const spaces = [];
  const boxes = [];
  let y = 0;
  for (const tree of trees) {
    spaces.push({ name: tree.name, y: y + LABEL - 6 });
    y += LABEL;
    for (const top of tree.tops) {
      put(top, 0, y, 1);
      y += top.rows * row;
    }
    y += GAP;
  }
  return { height: Math.max(y - GAP, LABEL), spaces, boxes, folded };

  function put(node, x, top, level) {
    const wide = Math.max((scale(node.tokens) / widest) * width, NARROWEST);
    boxes.push({ ...node, x, y: top, width: wide, height: node.rows * row, level });
    for (const child of node.below) {
      put(child, x + wide, top, level + 1);
      top += child.rows * row;
    }
  }
}

function grow({ namespace, nodes }) {
  const grown = nodes.map((node) => ({ ...node, namespace, tokens: node.end - node.start, below: [], rows: 0 }));
  const tops = [];
  for (const node of grown) (node.parent < 0 ? tops : grown[node.parent].below).push(node);
  for (const node of grown.toReversed()) {
    // Stable likewise: by the insert that brought it, not by how it is used.
    node.below.sort((a, b) => age(a) - age(b));
    node.rows = Math.max(1, node.below.reduce((sum, child) => sum + child.rows, 0));
  }
  tops.sort((a, b) => age(a) - age(b));
  const tokens = grown.reduce((sum, node) => sum + node.tokens, 0);
  return { name: namespace, tops, tokens, rows: tops.reduce((sum, top) => sum + top.rows, 0) };
}

const age = (node) => Number(node.id.split(".")[0]);
const reach = (node, scale) => scale(node.tokens) + Math.max(0, ...node.below.map((child) => reach(child, scale)));
const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
