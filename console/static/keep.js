// What a person has opened, typed or scrolled to stays while a view that follows a growing log is renewed.

/** Elements without listeners of their own, whose children are compared one by one. */
const COMPARED = new Set(["DIV", "SECTION", "TABLE", "TBODY", "TR", "UL", "OL"]);

/** Makes the children of an element equal to `nodes`, and leaves those alone that are equal already. */
export function renew(parent, nodes) {
  nodes.forEach((fresh, number) => {
    const old = parent.childNodes[number];
    if (!old) parent.append(fresh);
    else if (old.isEqualNode(fresh)) return;
    else if (old.tagName === fresh.tagName && COMPARED.has(old.tagName)) {
      for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
      renew(old, [...fresh.childNodes]);
    } else old.replaceWith(fresh);
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}

/** What was opened in the view that is shown, by name, with what it says. */
export const opened = new Map();
