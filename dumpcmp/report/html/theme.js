// Light or dark: as the reader's machine says, until the reader says otherwise by what this returns.

function wearTheme(worn = () => {}) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const wear = isDark => {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    worn(isDark);
  };
  dark.addEventListener("change", event => wear(event.matches));
  wear(dark.matches);
  return wear;
}
