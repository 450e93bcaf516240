// A classic script, for browsers that cannot run the page's modules: they would show nothing else.
addEventListener("load", function () {
  if (document.documentElement.hasAttribute("data-runs")) return;
  var line = document.createElement("p");
  line.className = "error";
  line.appendChild(document.createTextNode("This browser does not run the console. Reload the page; if that does not help, use a current Firefox, Chromium or Safari, or metaquorum log in a terminal."));
  var main = document.getElementById("main");
  main.textContent = "";
  main.appendChild(line);
});
