// Faults of the page as it is shown: a list of lines. Positions are in pixels.
((MOST_HEIGHT, LEAST_CONTRAST) => {
    const faults = new Map();  // a line by its kind and place, so that a repeated fault is one line
    const add = (kind, place, text) => faults.has(`${kind} ${place}`) || faults.set(`${kind} ${place}`, `${kind}: ${text} [${place}]`);
    const short = text => JSON.stringify(text.trim().replace(/\s+/g, ' ').slice(0, 50));
    const named = element => element.tagName.toLowerCase() + [...element.classList].slice(0, 2).map(name => `.${name}`).join('');
    const place = element => [element.parentElement?.parentElement, element.parentElement, element].filter(Boolean).map(named).join(' > ');
    const ancestors = element => { const all = []; for (; element; element = element.parentElement) all.push(element); return all; };

    // text and glyphs that are shown, with the boxes that may cut them
    const items = [];
    const hidden = element => !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || element.closest('mjx-assistive-mml, .visually-hidden, .sr-only, noscript');
    const visible = (rect, element) => {
        let { left, right, top, bottom } = rect, cut = null, scrolls = false;
        for (const box of ancestors(element)) {
            if (box === document.body || box === document.documentElement) break;
            const style = getComputedStyle(box), edge = box.getBoundingClientRect();
            if (style.display === 'inline' || style.display === 'contents') continue;
            for (const [overflow, low, high] of [[style.overflowX, 'left', 'right'], [style.overflowY, 'top', 'bottom']]) {
                if (overflow === 'visible') continue;
                const sticks = Math.max(edge[low] - rect[low], rect[high] - edge[high]);
                if (overflow === 'auto' || overflow === 'scroll') scrolls = true;
                else if (sticks > 2 && !scrolls && edge.width > 2 && edge.height > 2) cut ??= box;
            }
            if (style.overflowX !== 'visible') [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
            if (style.overflowY !== 'visible') [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
            if (style.position === 'fixed') break;
        }
        return { left, right, top, bottom, cut };
    };
    const article = document.querySelector('article');
    const push = (rect, element, owner, text, shrink) => {
        if (rect.width < 1 || rect.height < 1) return;
        const seen = visible(rect, element);
        if (seen.cut) add('cut', place(seen.cut), short(text));
        const less = shrink * rect.height;
        if (article?.contains(element)) items.push({ ...seen, top: seen.top + less, bottom: seen.bottom - less, element, owner, text });
    };
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.data.trim() || /^(SCRIPT|STYLE|TITLE|OPTION)$/.test(element.tagName) || hidden(element)) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        const rects = [...range.getClientRects()];
        if (!rects.length || rects.every(rect => rect.right <= 0 || rect.width < 2)) continue;  // a closed drawer
        texts.push([element, node.data]);
        for (const rect of rects) push(rect, element, node, node.data, 0.2);
    }
    for (const formula of document.querySelectorAll('mjx-container')) {
        if (hidden(formula)) continue;
        texts.push([formula, 'formula']);
        for (const glyph of formula.querySelectorAll('mjx-c')) push(glyph.getBoundingClientRect(), formula, formula, `formula ${formula.textContent}`, 0.05);
    }

    // overlaps
    items.sort((one, other) => one.top - other.top);
    items.forEach((one, at) => {
        for (let next = at + 1; next < items.length && items[next].top < one.bottom - 1; next++) {
            const other = items[next];
            const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
            const high = Math.min(one.bottom, other.bottom) - other.top;
            if (one.owner !== other.owner && wide > 3 && high > 1) add('overlap', `${place(one.element)} | ${place(other.element)}`, `${short(one.text)} and ${short(other.text)} by ${wide.toFixed()} × ${high.toFixed()}`);
        }
    });

    // contrast
    const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const channels = colour => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
        return [red, green, blue, alpha / 255];
    };
    const over = ([red, green, blue, alpha], under) => [red, green, blue].map((value, at) => alpha * value + (1 - alpha) * under[at]);
    const luminance = colour => colour.map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4).reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
    const known = new Map();
    const backgroundOf = element => {
        if (!element) return [255, 255, 255];
        if (!known.has(element)) {
            const colour = channels(getComputedStyle(element).backgroundColor);
            known.set(element, colour[3] === 1 ? colour.slice(0, 3) : over(colour, backgroundOf(element.parentElement)));
        }
        return known.get(element);
    };
    const contrasts = new Map();
    const checkContrast = (element, written, text) => {
        const background = backgroundOf(element);
        const key = `${written} on ${background.map(Math.round)}`;
        if (!contrasts.has(key)) {
            const [dark, light] = [luminance(over(channels(written), background)), luminance(background)].sort((one, other) => one - other);
            contrasts.set(key, (light + 0.05) / (dark + 0.05));
        }
        if (contrasts.get(key) < LEAST_CONTRAST) add('contrast', key, `${contrasts.get(key).toFixed(2)} of ${short(text)} in ${place(element)}`);
    };
    for (const [element, text] of texts) checkContrast(element, getComputedStyle(element).color, text);
    for (const field of document.querySelectorAll('input[placeholder]')) {
        if (!hidden(field)) checkContrast(field, getComputedStyle(field, '::placeholder').color, field.placeholder);
    }

    // the page
    const root = document.documentElement;
    const inner = document.querySelector('.content');  // on phones it would scroll in the place of the page
    const sticks = Math.max(root.scrollWidth - window.innerWidth, inner ? inner.scrollWidth - inner.clientWidth : 0);
    if (sticks > 1) {
        const wide = [...document.querySelectorAll('body *')].filter(element => {
            const rect = element.getBoundingClientRect();
            const scrolls = ancestors(element.parentElement).some(box => box !== inner && !/visible|hidden/.test(getComputedStyle(box).overflowX));
            return rect.right > window.innerWidth + 1 && !scrolls && getComputedStyle(element).position !== 'fixed';
        });
        add('overflow', wide.length ? place(wide.at(-1)) : 'page', `by ${sticks} px`);
    }
    if (window.innerWidth >= 1280 && root.scrollHeight > MOST_HEIGHT) add('tall', 'page', `${root.scrollHeight} px`);
    for (const image of document.images) {
        const file = image.src.startsWith('data:') ? 'data' : image.src.split('/').at(-1);
        if (!image.alt.trim() || /\.(png|svg|jpe?g)$/.test(image.alt)) add('alt', file, image.alt ? `a file name, ${image.alt}` : 'none');
        if (!image.complete || !image.naturalWidth) add('image', file, 'does not load');
    }
    return [...faults.values()];
})
