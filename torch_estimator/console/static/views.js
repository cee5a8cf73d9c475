// Marks all that belongs to the trial under the pointer. Everything else on these pages is HTML.
"use strict";

document.addEventListener("mouseover", (event) => {
  const number = event.target.closest("[data-trial]")?.dataset.trial;
  for (const one of document.querySelectorAll("[data-trial].lit")) one.classList.remove("lit");
  if (number) for (const one of document.querySelectorAll(`[data-trial="${number}"]`)) one.classList.add("lit");
});
