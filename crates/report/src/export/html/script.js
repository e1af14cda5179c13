const box = document.getElementById("filter");
const rows = [...document.querySelectorAll(".list tbody tr")];
box.addEventListener("input", () => {
  const wanted = box.value.toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
